"""Twenty prompts for the benchmarks, written for them; half of them ask for structured answers."""

STRUCTURED = (
    "Write a Python function that returns the n-th Fibonacci number, with a docstring and three examples.",
    "List the planets of the solar system in order, one per line, each with one short fact.",
    "Count from one to forty in words, separated by commas.",
    "Give me a numbered list of ten tips for learning to cook.",
    "Write a JSON object that describes a book with title, author, year, publisher and a list of five chapters.",
    "Make a table in Markdown of the four seasons with columns for months, weather and a typical activity.",
    "Write an HTML page with a heading, a paragraph and an unordered list of five fruits.",
    "Write the multiplication table of seven, from 7 x 1 to 7 x 12, one line each.",
    "Copy this text word for word: The quick brown fox jumps over the lazy dog. The dog barks at the fox. The fox runs "
    "into the forest. The forest is dark and quiet. The dog goes home and sleeps by the fire.",
    "Rewrite as a bullet list: We need two cups of flour, one cup of sugar, three eggs, a pinch of salt, half a cup of "
    "butter, a spoon of vanilla and some milk. Mix everything, pour it into a form and bake it for forty minutes.",
)
OPEN = (
    "Explain photosynthesis step by step.",
    "Tell a short story about a lighthouse keeper who finds a letter in a bottle.",
    "What are the causes of the tides, and why are there two a day?",
    "Write a polite e-mail asking a landlord to repair a broken heater.",
    "Compare trains and aeroplanes for a journey of five hundred kilometres.",
    "What should a person think about before adopting a dog?",
    "Describe the taste of a ripe mango to someone who has never eaten one.",
    "Why do leaves change their colour in autumn?",
    "Summarise: The library in our town was built in 1902 with money from a local merchant. It burnt down in 1944 and was "
    "rebuilt ten years later. Today it holds eighty thousand books and a small museum about the history of the town.",
    "Give advice to a friend who is nervous before a job interview.",
)
ALL = tuple(p for pair in zip(STRUCTURED, OPEN) for p in pair)
