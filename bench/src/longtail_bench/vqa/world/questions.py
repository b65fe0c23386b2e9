"""Questions with an open answer, in GQA's families: query an attribute or a relation, choose.

Each family is a function of a view that gives a question or, where the scene has nothing to ask
about, None.
"""

from collections import defaultdict

from longtail_bench.vqa.world.draws import SPATIAL, Asked, Draw, said
from longtail_bench.vqa.world.scenes import Thing, View

QUERY = {
    "color": ("What color is the {0}?", "Which color is the {0}?", "What is the color of the {0}?"),
    "material": ("What is the {0} made of?", "What material is the {0} made of?"),
    "state": ("How does the {0} look?", "What state is the {0} in?"),
    "pose": ("What is the {0} doing?",),
    "size": ("What size is the {0}?", "How big is the {0}?"),
}


def query_attribute(draw: Draw, view: View) -> Asked:
    thing = draw.pick(view.things)
    attribute, value = draw.attribute(thing)
    name = draw.described(thing)
    text = draw.pick(QUERY[attribute]).format(name)
    local = f"10q-{thing.name}_{attribute}"
    return Asked(view.image, text, value, "directOf", attribute, local)


def query_relation(draw: Draw, view: View) -> Asked | None:
    """What furniture is to the left of the lamp? Only where there is one answer."""
    anchor = draw.pick(view.things)
    found: dict[tuple[str, str], list[Thing]] = defaultdict(list)
    for thing in view.things:
        for relation, other in thing.relations:
            if other is anchor and relation in SPATIAL:
                found[relation, thing.category].append(thing)
    single = [key for key, things in found.items() if len(things) == 1]
    if not single:
        return None
    relation, category = draw.pick(single)
    answer = found[relation, category][0]
    text = f"What {category} is {relation} the {anchor.name}?"
    local = f"15-{anchor.name}_{relation},s"
    return Asked(view.image, text, answer.name, "categoryRelS", answer.category, local)


def query_action(draw: Draw, view: View) -> Asked | None:
    """What is the man holding? Who is holding the cup?"""
    acts = [(p, r, t) for p in view.things for r, t in p.relations if r not in SPATIAL]
    if not acts:
        return None
    person, action, thing = draw.pick(acts)
    if draw.coin():
        text, local = f"What is the {person.name} {action}?", f"14-{person.name}_{action},o"
        return Asked(view.image, text, thing.name, "relO", thing.category, local)
    text, local = f"Who is {action} the {thing.name}?", f"14-{thing.name}_{action},s"
    return Asked(view.image, text, person.name, "relS", person.category, local)


def choose_attribute(draw: Draw, view: View) -> Asked:
    thing = draw.pick(view.things)
    attribute, value = draw.attribute(thing)
    other = draw.other(thing, attribute)
    first, second = (value, other) if draw.coin() else (other, value)
    text = f"Is the {draw.described(thing)} {said(attribute, first)} or {second}?"
    local = f"10c-{thing.name}_{attribute}"
    return Asked(view.image, text, value, "chooseAttr", attribute, local)


def choose_relation(draw: Draw, view: View) -> Asked | None:
    thing = draw.pick(view.things)
    sides = [(r, o) for r, o in thing.relations if r in ("to the left of", "to the right of")]
    if not sides:
        return None
    relation, other = draw.pick(sides)
    answer = relation.split()[2]
    text = f"Is the {thing.name} to the left or to the right of the {other.name}?"
    local = f"13-{other.name}_{thing.name}"
    return Asked(view.image, text, answer, "relChooser", "", local)
