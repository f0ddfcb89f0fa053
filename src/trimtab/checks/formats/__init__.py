"""Config formats.

reading.py          ConfigReading: plan, line numbers, syntax; Values: settings by name and type;
                    FormatTable: names, defaults and fixes of a format, from its TOML file
syntax.py           JSON, TOML, YAML and shell scripts: settings, and the line of each
hf.py               HF TrainingArguments, and axolotl
torchtitan.py       torchtitan's TOML and JSON
megatron.py         Megatron-LM's flags
"""
