"""Results for people: text tables, figures on paper (matplotlib) and one page for a browser (html)."""
