"""The front door: `streamlit run app.py`. Nothing heavy is imported before the menu is up."""

from ui.navigation import navigate

navigate().run()
