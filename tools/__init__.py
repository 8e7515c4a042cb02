"""Set-up and checks of a checkout, with the standard library alone: they run before the rest."""
