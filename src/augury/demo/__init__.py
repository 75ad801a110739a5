"""What `augury demo` does: pictures, a slow store, real training through each recipe, and a report of it.

An application of the package, not a part of it: nothing else imports this. torch and matplotlib are imported inside
functions only.
"""
