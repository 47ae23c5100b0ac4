"""Edit locks: no editor overwrites what another has saved, and editors see each other.

`versions` compares rows, `forms` refuses to save over a row that has changed, `model_admin` and
`update_view` put such forms on the paths that save.
"""
