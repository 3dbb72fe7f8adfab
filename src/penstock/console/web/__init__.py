"""The pages, drawn with NiceGUI. They show what the service knows and ask it to act; they reach nothing else.

`app` puts everything together and serves it, `security` stands in front of it, `access` says who may come in. `frame`
draws what every page has around it, `parts` are the pieces that pages are made of, and every module in `pages` declares
the routes of one noun. Text that comes from records, names and errors is only ever given to elements as text: it is
never part of HTML, of Markdown, of JavaScript, or of a template.
"""
