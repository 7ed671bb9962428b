"""What MkDocs needs besides mkdocs.yml to build the site of the documentation (`make site`)."""
