"""Polish prompts for the benchmarks in three genres, written for them; beginnings, since the bundled models only continue text."""

GENRES = {
    "encyclopaedic": (
        "Fotosynteza to proces, w którym rośliny",
        "Wisła – najdłuższa rzeka",
        "Mikołaj Kopernik był polskim astronomem, który",
        "Średniowiecze to okres w historii Europy,",
        "Węgiel jest pierwiastkiem chemicznym, który",
        "Zamek w Malborku został zbudowany przez",
        "Dąb szypułkowy – gatunek drzewa",
        "Język polski należy do grupy języków",
    ),
    "instructions": (
        "Aby zapisać plik na dysku, wybierz",
        "Aby zmienić hasło użytkownika, należy",
        "Jeśli drukarka nie działa, sprawdź, czy",
        "Kliknij prawym przyciskiem myszy, a następnie",
        "Żeby dodać nowy wiersz do tabeli,",
        "Polecenie służy do wyświetlania listy plików. Opcja",
        "Przed rozpoczęciem instalacji upewnij się, że",
        "Aby wstawić obraz do dokumentu, otwórz menu",
    ),
    "questions and prose": (
        "Co to jest księżyc?",
        "Dlaczego liście jesienią żółkną?",
        "Kto rządził królestwem?",
        "Gdzie leży Kraków?",
        "Stary żołnierz usiadł przy ogniu i powiedział:",
        "O świcie wojska ruszyły w stronę gór, a",
        "Dziewczyna otworzyła drzwi i zobaczyła",
        "Jak długo trwa podróż do miasta?",
    ),
}
