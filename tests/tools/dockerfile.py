"""A Dockerfile as a list of instructions."""

import json
import re


def instructions(text):
    """Return (instruction, arguments) in order; continued lines are joined, comments and blank lines left out."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines) + "\n")
    parsed = [re.fullmatch(r"([A-Z]+) +(.+)", line) for line in joined.splitlines()]
    assert all(parsed), "not an instruction: " + joined
    return [(match[1], match[2]) for match in parsed]


def stages(text):
    """Return the instructions of each stage, from its FROM on; the ARGs before the first are a stage of their own."""
    found = [[]]
    for instruction in instructions(text):
        if instruction[0] == "FROM":
            found.append([])
        found[-1].append(instruction)
    return found


def last(stage, name):
    """Return the arguments of the last instruction of a name, which is the one that counts."""
    return [arguments for instruction, arguments in stage if instruction == name][-1]


def settings(stage, name):
    """Return the NAME=VALUE of all ENV or ARG instructions of a stage; "" for an ARG without a value."""
    pairs = (word.partition("=") for given, words in stage if given == name for word in words.split())
    return {key: value for key, _, value in pairs}


def words(stage, name):
    """Return the words of an instruction in the JSON form."""
    return json.loads(last(stage, name))
