"""Questions answered with yes or no, in GQA's families: verify, exist, logical, compare.

Whether the answer is yes is drawn first, where the scene allows it: both are about as frequent
before `balance.py` makes them so in every group.
"""

from longtail_bench.vqa.world import words
from longtail_bench.vqa.world.draws import SPATIAL, Asked, Draw, article, said
from longtail_bench.vqa.world.scenes import View


def verify_attribute(draw: Draw, view: View) -> Asked:
    thing = draw.pick(view.things)
    attribute, value, true = draw.claim(thing)
    text = f"Is the {draw.described(thing)} {said(attribute, value)}?"
    return _yes_no(view, text, true, "verifyAttr", f"06-{thing.name}_{attribute}")


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
    text = f"Is the {thing.name} {claimed} the {other.name}?"
    return _yes_no(view, text, true, "relVerify", f"13-{thing.name}_{other.name}")


def exists(draw: Draw, view: View) -> Asked:
    true = draw.coin()
    thing = draw.pick(view.things)
    name = thing.name if true else draw.absent(view).name
    phrase = draw.pick(["Is there {} in the picture?", "Do you see {}?"])
    return _yes_no(view, phrase.format(article(name)), true, "exist", f"03-{name}")


def logical_attributes(draw: Draw, view: View) -> Asked:
    thing = draw.pick(view.things)
    one, value_1, true_1 = draw.claim(thing)
    two, value_2, true_2 = draw.claim(thing, avoid=one)
    conjunction, truth = "and", true_1 and true_2
    if draw.coin():
        conjunction, truth = "or", true_1 or true_2
    name = draw.described(thing)
    text = f"Is the {name} {said(one, value_1)} {conjunction} {said(two, value_2)}?"
    return _yes_no(view, text, truth, "verifyAttrs", f"05-{value_1}_{value_2}")


def logical_exists(draw: Draw, view: View) -> Asked | None:
    names: list[str] = []
    here: list[bool] = []
    for _ in range(2):
        thing = draw.pick(view.things) if draw.coin(0.6) else None
        names.append(thing.name if thing else draw.absent(view).name)
        here.append(thing is not None)
    both = draw.coin()
    one, two = names
    if one == two:
        return None
    local = f"04-{one}_{two}"
    if both:
        text = f"Are there both {article(one)} and {article(two)} in the picture?"
        return _yes_no(view, text, all(here), "existAnd", local)
    text = f"Is there either {article(one)} or {article(two)} in the picture?"
    return _yes_no(view, text, any(here), "existOr", local)


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
    text = f"Are the {first.name} and the {second.name} {phrase}?"
    kind = "twoSame" if same else "twoDifferent"
    return _yes_no(view, text, true is same, kind, f"09-{attribute}")


def _yes_no(view: View, text: str, truth: bool, kind: str, local: str) -> Asked:
    return Asked(view.image, text, "yes" if truth else "no", kind, "", local)
