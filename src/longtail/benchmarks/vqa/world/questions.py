"""Questions with an open answer, in GQA's families: query an attribute or a relation, choose.

Each family is a function of a view that gives a question or, where the scene has nothing to ask
about, None.
"""

from collections import defaultdict

from longtail.benchmarks.vqa.world.draws import SPATIAL, Asked, Draw, Step, said
from longtail.benchmarks.vqa.world.scenes import PERSON, Thing, View

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
    name, steps, mentions = draw.described(thing)
    return Asked(
        view.image,
        draw.pick(QUERY[attribute]).format(name),
        value,
        f"The {thing.name} is {value}.",
        ("query", "attr", "directOf"),
        attribute,
        f"10q-{thing.name}_{attribute}",
        [*steps, ("query", attribute, [len(steps) - 1])],
        mentions,
    )


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
    return _related(
        view,
        f"What {category} is {relation} the {anchor.name}?",
        f"The {category} is a {answer.name}.",
        "categoryRelS",
        f"15-{anchor.name}_{relation},s",
        anchor,
        f"{category},{relation},s",
        answer,
    )


def query_action(draw: Draw, view: View) -> Asked | None:
    """What is the man holding? Who is holding the cup?"""
    acts = [(p, r, t) for p in view.things for r, t in p.relations if r not in SPATIAL]
    if not acts:
        return None
    person, action, thing = draw.pick(acts)
    full = f"The {person.name} is {action} the {thing.name}."
    if draw.coin():
        text, local = f"What is the {person.name} {action}?", f"14-{person.name}_{action},o"
        return _related(view, text, full, "relO", local, person, f"_,{action},o", thing)
    text, local = f"Who is {action} the {thing.name}?", f"14-{thing.name}_{action},s"
    return _related(view, text, full, "relS", local, thing, f"{PERSON},{action},s", person)


def _related(
    view: View,
    text: str,
    full: str,
    detailed: str,
    local: str,
    anchor: Thing,
    relation: str,
    answer: Thing,
) -> Asked:
    """A question for the name of the one thing that stands in a relation to `anchor`."""
    steps: list[Step] = [
        ("select", f"{anchor.name} ({anchor.id})", []),
        ("relate", f"{relation} ({answer.id})", [0]),
        ("query", "name", [1]),
    ]
    types = ("query", "rel", detailed)
    group = answer.category
    return Asked(view.image, text, answer.name, full, types, group, local, steps, [anchor])


def choose_attribute(draw: Draw, view: View) -> Asked:
    thing = draw.pick(view.things)
    attribute, value = draw.attribute(thing)
    other = draw.other(thing, attribute)
    first, second = (value, other) if draw.coin() else (other, value)
    name, steps, mentions = draw.described(thing)
    return Asked(
        view.image,
        f"Is the {name} {said(attribute, first)} or {second}?",
        value,
        f"The {thing.name} is {value}.",
        ("choose", "attr", "chooseAttr"),
        attribute,
        f"10c-{thing.name}_{attribute}",
        [*steps, (f"choose {attribute}", f"{first}|{second}", [len(steps) - 1])],
        mentions,
    )


def choose_relation(draw: Draw, view: View) -> Asked | None:
    thing = draw.pick(view.things)
    sides = [(r, o) for r, o in thing.relations if r in ("to the left of", "to the right of")]
    if not sides:
        return None
    relation, other = draw.pick(sides)
    answer = relation.split()[2]
    return Asked(
        view.image,
        f"Is the {thing.name} to the left or to the right of the {other.name}?",
        answer,
        f"The {thing.name} is {relation} the {other.name}.",
        ("choose", "rel", "relChooser"),
        "",
        f"13-{other.name}_{thing.name}",
        [
            ("select", f"{other.name} ({other.id})", []),
            ("choose rel", f"{thing.name},to the left of|to the right of,s ({thing.id})", [0]),
        ],
        [thing, other],
    )
