"""The report of an evaluation: figures, tables, and the page that shows them."""
