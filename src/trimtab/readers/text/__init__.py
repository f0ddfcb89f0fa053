"""Text logs of trainers.

`parser` reads them all by a grammar; `grammars` has those that need nothing else, `corrected` those
whose numbers are corrected afterwards.
"""
