"""The general reader: a text log of any trainer, understood from what it prints.

`lines`    a line: its numbers, and what each of them is called
`tables`   a table: names in one line, numbers in those below
`shapes`   lines with the same names, collected as tables of numbers
`roles`    what a column is, by the words of its name (`words.toml`) and how it behaves
`choice`   which lines are the training records, and which columns their step and loss
`records`  the records with evaluations and what is printed beside them
`trainers` what trainers are known to do to the numbers that they print
`reader`   the format `text`
"""
