"""The front door: `streamlit run app.py`. Nothing heavy is imported before the menu is up.

Streamlit reads this file twice: as a module, for `app`, the server; and as the script that draws a page.
"""

from streamlit.runtime.scriptrunner import get_script_run_ctx

if get_script_run_ctx(suppress_warning=True) is not None:
    from ui.navigation import navigate

    navigate().run()
else:
    from streamlit.starlette import App

    from ui import server

    app = App(__file__, middleware=server.MIDDLEWARE, lifespan=server.lifespan)
