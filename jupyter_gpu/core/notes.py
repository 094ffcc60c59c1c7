"""Sentences for values of ``CUDA_VISIBLE_DEVICES`` that a person likely meant otherwise.

The driver says nothing about a value it cannot read: there are fewer GPUs, or none, and no message.
These sentences are that message. A value that says what it means gets none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jupyter_gpu.core.spelling import is_misspelt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from jupyter_gpu.core.devices import Device, Inventory
    from jupyter_gpu.core.visibility import Entry, Reading

VARIABLE = "CUDA_VISIBLE_DEVICES"
ON_PURPOSE = "No GPU on purpose"  # how the note on such a value begins
# The driver from which NVIDIA describes more than one compute instance per process.
_SEVERAL_MIG_DRIVER = 570
_SHOWN_CHARACTERS = 56  # room for the longest name of a MIG device
_SHOWN_ITEMS = 4
_LONGEST_RANGE = 64
_GLOBAL_IDS = {
    "SLURM_STEP_GPUS": "the scheduler's number",
    "SLURM_JOB_GPUS": "the scheduler's number",
    "NVIDIA_VISIBLE_DEVICES": "a number outside this container",
}
_NOTHING = {"none", "void", "nodevfiles", "null", "nil", "no", "false", "cpu", "nan"}
_EVERYTHING = {"all", "any", "auto"}
_ALL_IS = f"is a word for containers (NVIDIA_VISIBLE_DEVICES); unset {VARIABLE} to see all"
# Compiled at first use: a value that says what it means needs few of them.
_UUID_LIKE = r"(?i)[ \t\n\v\f\r]*(?:GPU|MIG)-"
_BARE_UUID = r"(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]*"
_FRAMEWORK_NAME = r"(?i)(?:cuda|gpu|device|(?:/dev/)?nvidia)[: ]?([0-9]+)"
_NUMBER_AND_TAIL = r"(?s)[ \t\n\v\f\r]*[+-]?([0-9]+)(.*)"
_UUID_AND_TAIL = r"(?s)(?:GPU|MIG)-[0-9A-Fa-f-]*(.*)"
_WHOLE_UUID = r"(?:GPU|MIG)-(?:-*[0-9A-Fa-f]){32}"
_PART_AND_TAIL = r"GPU-[0-9A-Fa-f-]*[0-9A-Fa-f]-*[^0-9A-Fa-f-]"
_RANGE = r"[ \t\n\v\f\r]*([0-9]{1,9})\s*(?:-|\.\.\.?|–)\s*([0-9]{1,9})\s*"
_SEPARATED = r"(?:\s*[;:|/+&，、；]\s*|\s+)(?:[0-9]|GPU-|MIG-)"
_QUOTES = "'\"`‘’“”"
_BRACKETS = "()[]{}<>"
_GOOD_LIST = r"[0-9]+(,[0-9]+)*|(GPU|MIG)-[^,\s]+(,(GPU|MIG)-[^,\s]+)*"


def value_notes(
    value: str | None,
    reading: Reading | None,
    inventory: Inventory,
    environment: Mapping[str, str] | None,
) -> tuple[str, ...]:
    """Return the sentences for one value, the most important first.

    ``reading`` is how the driver reads the value on that machine, None where the value is None.
    With an inventory of source ``none`` only what the text itself shows is said.
    """
    notes: list[str] = []
    if value is None or reading is None:
        notes.extend(_unset_notes(inventory))
    elif _on_purpose(value):
        how = f"{_quoted(value)} hides them all" if value.strip() else "the value is empty"
        notes.append(f"{ON_PURPOSE}: {how}.")
    else:
        notes.extend(_text_notes(value, reading, inventory, environment or {}))
        notes.extend(_number_notes(reading, inventory))
        notes.extend(_mig_notes(reading, inventory))
    notes.extend(_order_notes(reading, inventory, environment))
    notes.extend(_misspelt_names(environment or {}))
    return tuple(dict.fromkeys(notes))


def pool_notes(
    value: str | None, inventory: Inventory, pool_uuids: Collection[str]
) -> tuple[str, ...]:
    """Return a sentence where the value names devices of this machine that are not in this pool.

    The pool is what the server itself may use: its own CUDA_VISIBLE_DEVICES, a Slurm job, a
    container.
    """
    # Imported here because visibility imports this module for the notes of every value.
    from jupyter_gpu.core.visibility import read  # noqa: PLC0415

    if value is None:
        return ()
    outside = [device for device in read(value, inventory).devices if device.uuid not in pool_uuids]
    if not outside:
        return ()
    pool = _listed(_place(device) for device in inventory.devices if device.uuid in pool_uuids)
    named = f"{_listed(map(_place, outside))}, on this machine but not in this pool"
    return (f"{_quoted(value)} names {named} ({pool or 'which is empty'}).",)


def _on_purpose(value: str) -> bool:
    return not value.strip() or re.fullmatch(r"\s*-0*[1-9][0-9]*\s*", value) is not None


def _unset_notes(inventory: Inventory) -> Iterator[str]:
    migs = [device for device in inventory.devices if device.kind == "mig"]
    if not migs:
        return
    if len(_uncounted(inventory)) < len(inventory.gpus):
        are = "1 MIG device here is" if len(migs) == 1 else f"{len(migs)} MIG devices here are"
        yield f"{are} not shown: {VARIABLE} has to name a MIG device by its UUID."
    elif len(migs) > 1:
        yield (
            f"{VARIABLE} is not set: of {len(migs)} MIG devices only the first is certain. "
            "Name another by its UUID."
        )


def _text_notes(
    value: str, reading: Reading, inventory: Inventory, environment: Mapping[str, str]
) -> Iterator[str]:
    """Yield what is wrong with the text: twice the same, the entry that ends it, odd entries."""
    if inventory.source == "none":
        ending, reached = _first_unreadable(value), value.split(",")
    else:
        ending = _ending_note(reading, inventory, environment)
        last = () if reading.ended_by is None else (reading.ended_by,)
        reached = [entry.text for entry in (*reading.entries, *last)]
    if reading.twice is not None:
        first, second = reading.twice
        yield (
            f"{_quoted(first.text)} and {_quoted(second.text)} both name {_place(first.device)}: "
            "a device named twice makes cuInit fail with 101, and no GPU is shown."
        )
    elif ending is not None:
        yield ending
    shapes = [note for text in reached for note in _shape_notes(text)]
    yield from shapes[:_SHOWN_ITEMS]
    mended = _mended(value)
    odd = shapes or any(character in value for character in _QUOTES + _BRACKETS)
    if mended is not None and (
        odd or re.fullmatch(_FRAMEWORK_NAME, value.partition(",")[0].strip())
    ):
        yield f"Write {mended} if that is what you meant."


def _first_unreadable(value: str) -> str | None:
    """Return why no machine could read the first entry, or None where some machine might."""
    text = value.partition(",")[0]
    if text.startswith(("GPU-", "MIG-")) or re.match(_NUMBER_AND_TAIL, text) or not text.strip():
        return None
    return f"{_why_no_device(text)}."


def _ending_note(
    reading: Reading, inventory: Inventory, environment: Mapping[str, str]
) -> str | None:
    """Return a sentence on the entry that ends the list, what is shown, and what is not read."""
    entry = reading.ended_by
    unread = [_quoted(text) for text in reading.unread if text.strip()]
    if entry is None or (entry.end == "blank" and not unread and reading.entries):
        return None
    shown = _listed(map(_place, reading.certain))
    found = f"only {shown} {'is' if len(reading.certain) == 1 else 'are'}" if shown else "no GPU is"
    lost = f"; {_listed(unread)} after it {'is' if len(unread) == 1 else 'are'} not read"
    note = f"{_why_it_ends(entry, reading, inventory)}: {found} shown{lost if unread else ''}."
    return note + _global_id(entry, environment)


def _why_it_ends(entry: Entry, reading: Reading, inventory: Inventory) -> str:
    text = _quoted(entry.text)
    plain = {
        "blank": "An empty entry ends the list",
        "negative": f"{text} is below zero",
        "overflow": f"{text} is larger than any index",
    }
    if entry.end in plain:
        return plain[entry.end]
    if entry.end == "out of range":
        return _why_out_of_range(entry, inventory)
    if entry.end in ("other kind", "no number"):
        return _why_other_kind(entry, reading)
    return _why_uuid_fails(entry)


def _why_other_kind(entry: Entry, reading: Reading) -> str:
    """Say why an entry is not of the kind that the list began with."""
    if entry.end == "no number":
        return _why_no_device(entry.text)
    text, by_number = _quoted(entry.text), any(read.number is not None for read in reading.entries)
    if re.match(_UUID_LIKE, entry.text) and not by_number:
        return f"A blank before {text} makes CUDA stop reading"
    begun = "numbers" if by_number else "UUIDs"
    return f"A list is all numbers or all UUIDs, and {text} ends the {begun}"


def _why_no_device(text: str) -> str:
    """Say what is wrong with an entry that no machine could read: the first line that fits."""
    shown, bare = _quoted(text), text.strip()
    reasons = (
        (bare.lower() in _NOTHING, f"{shown} is no device id"),
        (bare.lower() in _EVERYTHING, f"{shown} {_ALL_IS}"),
        (bare[0] in _QUOTES, "The quotes are part of the value, and CUDA reads none"),
        (bare[0] in _BRACKETS, "CUDA reads no brackets"),
        (re.fullmatch(_FRAMEWORK_NAME, bare), f"CUDA reads plain numbers, and {shown} is a name"),
        (re.match(_BARE_UUID, bare), f'{shown} has no "GPU-" before it'),
        (bare.startswith(("GPU-", "MIG-")), f"A blank before {shown} makes CUDA stop reading"),
        (re.match(_UUID_LIKE, bare), f'{shown} needs its prefix in capitals, "GPU-" or "MIG-"'),
    )
    fallback = f"{shown} is neither a device number nor a UUID"
    return next((reason for fits, reason in reasons if fits), fallback)


def _why_out_of_range(entry: Entry, inventory: Inventory) -> str:
    if entry.wrapped:
        return f"{_quoted(entry.text)} is larger than any index here"
    uncounted = _uncounted(inventory)
    counted = len(inventory.gpus) - len(uncounted)
    kind = "GPU" if counted or len(inventory.gpus) == len(inventory.devices) else "MIG device"
    counted = counted if kind == "GPU" else 1
    found = f"{counted or 'no'} {kind}{'s' if counted > 1 else ''}{', from 0' if counted else ''}"
    without = f", without {_listed(map(_with_reason, uncounted))}" if uncounted else ""
    return f"The index {entry.number} does not exist here, where CUDA counts {found}{without}"


def _why_uuid_fails(entry: Entry) -> str:
    """Say why a text in UUID form names no device that CUDA can use here."""
    text = _quoted(entry.text)
    if entry.end == "old mig form":
        old = f"{text} is the older form of a MIG device's name"
        if not entry.candidates:
            return f"{old}, and no GPU in MIG mode here has that UUID"
        return f"{old}, and no MIG device here has these numbers"
    if entry.end == "unknown uuid":
        part = re.match(_PART_AND_TAIL, entry.text) and not re.match(_WHOLE_UUID, entry.text)
        why = ", and nothing, not even a blank, may stand behind a part of one" if part else ""
        return f"No device here has the UUID {text}{why}"
    if entry.end == "ambiguous uuid":
        return f"{text} fits more than one device, {_listed(map(_place, entry.candidates))}"
    return f"{text} is {_listed(map(_with_reason, entry.candidates))}, which CUDA does not offer"


def _global_id(entry: Entry, environment: Mapping[str, str]) -> str:
    """Say whose number it is, where a scheduler or a container gave it."""
    if entry.end != "out of range" or entry.number is None:
        return ""
    for name, whose in _GLOBAL_IDS.items():
        for item in environment.get(name, "").split(","):
            ends = re.fullmatch(_RANGE, item)
            first, last = ends.groups() if ends else (item.strip(), item.strip())
            if re.fullmatch(r"[0-9]{1,9}", first) and int(first) <= entry.number <= int(last):
                return f" {entry.number} is {whose} ({name}); here CUDA counts from 0."
    return ""


def _shape_notes(text: str) -> Iterator[str]:
    """Yield what CUDA reads in an entry that says more than it reads."""
    shown = _quoted(text)
    uuid = re.match(_UUID_AND_TAIL, text)
    if uuid is not None:
        yield from _tail_notes(text, uuid[1])
        return
    number = re.match(_NUMBER_AND_TAIL, text)
    if number is None:
        return
    digits, tail = number[1].lstrip("0") or "0", number[2]
    what = f"{shown} is {_shortened(digits)}"
    if re.match(_BARE_UUID, text.strip()):
        yield f'{shown} has no "GPU-" before it, so CUDA reads the number {digits}.'
    elif re.fullmatch(_RANGE, text):
        yield f"Ranges are not read by CUDA: {what}."
    elif re.match(_SEPARATED, tail):
        yield f"Only commas separate devices: {what}."
    elif tail[:1] in ("x", "X"):
        yield f"Hexadecimal is not read by CUDA: {what}."
    elif re.match(r"\.[0-9]|[eE][+-]?[0-9]", tail):
        yield f"CUDA reads whole numbers only: {what}."
    elif tail.strip():
        yield f"CUDA ignores {_quoted(tail)} after a number: {what}."


def _tail_notes(text: str, tail: str) -> Iterator[str]:
    separated = re.match(_SEPARATED, tail)
    # Measured: a part of a UUID with anything behind it names nothing at all.
    if tail.strip() and re.match(_WHOLE_UUID, text):
        why = "Only commas separate" if separated else "Only the UUID is read"
        yield f"{why}: CUDA ignores {_quoted(tail)}."
    elif separated:
        yield f"Only commas separate devices: {_quoted(text)} is read as one UUID."


def _mended(value: str) -> str | None:
    """Return the value as it was probably meant, or None where that is anyone's guess."""
    plain = "".join(character for character in value if character not in _QUOTES + _BRACKETS)
    items: list[str] = []
    for text in plain.split(","):
        name, ends = re.fullmatch(_FRAMEWORK_NAME, text.strip()), re.fullmatch(_RANGE, text)
        if ends and 0 <= int(ends[2]) - int(ends[1]) < _LONGEST_RANGE:
            items.extend(str(number) for number in range(int(ends[1]), int(ends[2]) + 1))
        else:
            parts = [name[1]] if name else re.split(r"[;:|/+&\s，、；]+", text.strip())
            items.extend(part for part in parts if part)
    mended = ",".join(items)
    if mended == value.strip() or len(set(items)) < len(items):
        return None
    return mended if re.fullmatch(_GOOD_LIST, mended) else None


def _number_notes(reading: Reading, inventory: Inventory) -> Iterator[str]:
    """Yield where a number is not the physical index: wrapped, moved up, or a MIG device."""
    for entry in reading.entries:
        if entry.number is None or entry.device is None:
            continue
        if entry.wrapped:
            yield f"CUDA keeps 32 bits of a number: {_quoted(entry.text)} is {entry.number}."
        if entry.device.kind == "mig":
            yield f"{entry.number} is the first MIG device here, {_place(entry.device)}."
        elif entry.device.index != entry.number:
            uncounted = [gpu for gpu in _uncounted(inventory) if gpu.index < entry.device.index]
            why = f", as CUDA does not count {_listed(map(_with_reason, uncounted))}"
            yield f"{entry.number} is {_place(entry.device)} here{why if uncounted else ''}."


def _mig_notes(reading: Reading, inventory: Inventory) -> Iterator[str]:
    migs = [device for device in reading.devices if device.kind == "mig"]
    for entry in reading.entries:
        whole = entry.device is not None and entry.device.kind == "gpu"
        if whole and entry.text.startswith("MIG-"):
            yield f"{_quoted(entry.text)} is the UUID of a whole GPU, {_place(entry.device)}."
    if reading.twice is not None:
        return
    if migs and len(migs) < len(reading.entries):
        yield (
            "GPUs and MIG devices are in one list: only "
            f"{'the first device is' if reading.devices[0].kind == 'mig' else 'the GPUs are'} "
            "certain."
        )
    elif len(migs) > 1:
        major = re.match(r"[0-9]{1,6}", inventory.driver or "")
        if major is not None and int(major[0]) < _SEVERAL_MIG_DRIVER:
            yield f"Only the first MIG device is used: driver {major[0]} gives a process one."
        else:
            yield (
                f"Of {len(migs)} MIG devices only the first is certain; whether a process gets "
                "more, only the driver can say."
            )


def _order_notes(
    reading: Reading | None, inventory: Inventory, environment: Mapping[str, str] | None
) -> Iterator[str]:
    """Yield a warning where CUDA's own order may differ from the physical one."""
    order = None if environment is None else environment.get("CUDA_DEVICE_ORDER")
    uncounted = _uncounted(inventory)
    alike = len({gpu.name for gpu in inventory.gpus if gpu not in uncounted}) <= 1
    if environment is None or alike or order == "PCI_BUS_ID":
        return
    if reading is not None and all(entry.number is None for entry in reading.entries):
        return  # UUIDs need no order
    how = "is not set" if order is None else f"is {_quoted(order)}"
    yield (
        f"CUDA_DEVICE_ORDER {how} and the GPUs here differ: CUDA numbers the fastest 0, whatever "
        "its physical index. CUDA_DEVICE_ORDER=PCI_BUS_ID makes the numbers physical."
    )


def _misspelt_names(environment: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(environment):
        if is_misspelt(name, VARIABLE):
            yield f"CUDA does not read {_quoted(name)}: did you mean {VARIABLE}?"


def _uncounted(inventory: Inventory) -> list[Device]:
    """Return the GPUs that have no number in CUDA."""
    return [gpu for gpu in inventory.gpus if gpu.mig_mode or gpu.problem is not None]


def _place(device: Device | None) -> str:
    if device is None:
        return "an unknown device"
    part = "" if device.kind == "gpu" else f"{device.profile or 'a MIG device'} of "
    return f"{part}physical {device.index}"


def _with_reason(gpu: Device) -> str:
    return f"{_place(gpu)} ({'in MIG mode' if gpu.mig_mode else gpu.problem or 'usable'})"


def _listed(items: Iterable[str]) -> str:
    """Join a few items in words; of many, the first few and how many more."""
    texts = list(items)
    if len(texts) > _SHOWN_ITEMS:
        texts = [*texts[: _SHOWN_ITEMS - 1], f"{len(texts) - _SHOWN_ITEMS + 1} more"]
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1] if texts else "")))


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def _quoted(text: str) -> str:
    # A value may hold anything, and notes are printed to terminals: no control characters.
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in text.strip())
    return f'"{_shortened(shown)}"'
