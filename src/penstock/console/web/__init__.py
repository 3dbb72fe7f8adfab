"""The pages, drawn with NiceGUI. They show what the service returns and ask it to act; they reach nothing else.

`app` builds and serves everything, `security` guards it, `access` decides who may sign in. `frame` draws what surrounds
every page, `parts` are the building blocks of pages, and every module in `pages` declares the routes of one noun. Text
from records, names and errors is only ever given to elements as text: it is never part of HTML, Markdown, JavaScript or
a template.
"""
