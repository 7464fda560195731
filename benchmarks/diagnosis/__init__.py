"""Which rank is to blame, how soon and with how much memory: keepstep beside two other analysers.

``answers.py`` has the rule by which answers are marked.
"""
