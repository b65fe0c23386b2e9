"""Questions answered with yes or no, in GQA's families: verify, exist, logical, compare.

Whether the answer is yes is drawn first, where the scene allows it: both are about as frequent
before `balance.py` makes them so in every group.
"""

from longtail.benchmarks.vqa.world import words
from longtail.benchmarks.vqa.world.draws import SPATIAL, Asked, Draw, Step, article, said
from longtail.benchmarks.vqa.world.scenes import Thing, View


def verify_attribute(draw: Draw, view: View) -> Asked:
    thing = draw.pick(view.things)
    attribute, value, true = draw.claim(thing)
    name, steps, mentions = draw.described(thing)
    return _yes_no(
        view,
        f"Is the {name} {said(attribute, value)}?",
        true,
        ("verify", "attr", "verifyAttr"),
        f"06-{thing.name}_{attribute}",
        [*steps, (f"verify {attribute}", value, [len(steps) - 1])],
        mentions,
    )


def verify_relation(draw: Draw, view: View) -> Asked | None:
    thing = draw.pick(view.things)
    if not thing.relations:
        return None
    relation, other = draw.pick(thing.relations)
    true, claimed = draw.coin(), relation
    if not true and relation in SPATIAL:
        claimed = words.OPPOSITE[relation]
    elif not true:
        idle = [t for t in view.things if words.ACTION.get(t.kind.category) == relation]
        idle = [t for t in idle if t is not other]
        if not idle:
            return None
        other = draw.pick(idle)
    reference = other.id if true else "-"
    return _yes_no(
        view,
        f"Is the {thing.name} {claimed} the {other.name}?",
        true,
        ("verify", "rel", "relVerify"),
        f"13-{thing.name}_{other.name}",
        [
            ("select", f"{thing.name} ({thing.id})", []),
            ("verify rel", f"{other.name},{claimed},o ({reference})", [0]),
        ],
        [thing, other],
    )


def exists(draw: Draw, view: View) -> Asked:
    true = draw.coin()
    thing = draw.pick(view.things)
    name = thing.name if true else draw.absent(view).name
    return _yes_no(
        view,
        draw.pick(["Is there {} in the picture?", "Do you see {}?"]).format(article(name)),
        true,
        ("verify", "obj", "exist"),
        f"03-{name}",
        [("select", f"{name} ({thing.id if true else '-'})", []), ("exist", "?", [0])],
        [thing] if true else [],
    )


def logical_attributes(draw: Draw, view: View) -> Asked:
    thing = draw.pick(view.things)
    one, value_1, true_1 = draw.claim(thing)
    two, value_2, true_2 = draw.claim(thing, avoid=one)
    conjunction, truth = "and", true_1 and true_2
    if draw.coin():
        conjunction, truth = "or", true_1 or true_2
    name, steps, mentions = draw.described(thing)
    last = len(steps) - 1
    return _yes_no(
        view,
        f"Is the {name} {said(one, value_1)} {conjunction} {said(two, value_2)}?",
        truth,
        ("logical", "attr", "verifyAttrs"),
        f"05-{value_1}_{value_2}",
        [
            *steps,
            (f"verify {one}", value_1, [last]),
            (f"verify {two}", value_2, [last]),
            (conjunction, "", [last + 1, last + 2]),
        ],
        mentions,
    )


def logical_exists(draw: Draw, view: View) -> Asked | None:
    found: list[tuple[str, Thing | None]] = []
    for _ in range(2):
        thing = draw.pick(view.things) if draw.coin(0.6) else None
        found.append((thing.name if thing else draw.absent(view).name, thing))
    conjunction = "and" if draw.coin() else "or"
    here = [thing is not None for _, thing in found]
    (one, first), (two, second) = found
    if one == two:
        return None
    start = "Are there both" if conjunction == "and" else "Is there either"
    return _yes_no(
        view,
        f"{start} {article(one)} {conjunction} {article(two)} in the picture?",
        all(here) if conjunction == "and" else any(here),
        ("logical", "obj", "existAnd" if conjunction == "and" else "existOr"),
        f"04-{one}_{two}",
        [
            ("select", f"{one} ({first.id if first else '-'})", []),
            ("exist", "?", [0]),
            ("select", f"{two} ({second.id if second else '-'})", []),
            ("exist", "?", [2]),
            (conjunction, "", [1, 3]),
        ],
        [thing for _, thing in found if thing],
    )


def compare(draw: Draw, view: View) -> Asked | None:
    """Are the lamp and the chair the same color?"""
    first = draw.pick(view.things)
    attribute = draw.pick(["color", "size", "material"])
    true = draw.coin()
    others = [
        thing
        for thing in view.things
        if thing is not first
        and attribute in first.attributes
        and attribute in thing.attributes
        and (thing.attributes[attribute] == first.attributes[attribute]) is true
    ]
    if not others:
        return None
    second = draw.pick(others)
    same = draw.coin(0.7)
    phrase = f"the same {attribute}" if same else f"different in {attribute}"
    return _yes_no(
        view,
        f"Are the {first.name} and the {second.name} {phrase}?",
        true is same,
        ("compare", "attr", "twoSame" if same else "twoDifferent"),
        f"09-{attribute}",
        [
            ("select", f"{first.name} ({first.id})", []),
            ("select", f"{second.name} ({second.id})", []),
            (f"{'same' if same else 'different'} {attribute}", "", [0, 1]),
        ],
        [first, second],
    )


def _yes_no(
    view: View,
    text: str,
    truth: bool,
    types: tuple[str, str, str],
    local: str,
    program: list[Step],
    mentions: list[Thing],
) -> Asked:
    answer = "yes" if truth else "no"
    full = f"{answer.capitalize()}."
    return Asked(view.image, text, answer, full, types, "", local, program, mentions)
