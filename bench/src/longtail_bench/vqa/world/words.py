"""The words of the generated world: categories of objects, attributes, and what fits what.

Objects are plain English nouns, so that a pretrained encoder has met most of them. A name stands
in one category only; `_` joins the words of a name.
"""

CATEGORIES: dict[str, str] = {
    "person": """man woman boy girl child baby player lady chef waiter farmer soldier surfer skater
        cyclist fisherman nurse doctor driver pilot sailor dancer singer painter plumber butcher
        baker tailor guard judge priest monk tourist student teacher clown hiker swimmer runner
        catcher umpire referee goalkeeper bride groom""",
    "animal": """dog cat horse cow sheep goat pig donkey elephant giraffe zebra lion tiger bear wolf
        fox deer moose camel llama monkey gorilla rabbit squirrel mouse rat hamster hedgehog beaver
        otter seal walrus whale dolphin shark frog toad lizard snake turtle crocodile kangaroo koala
        panda leopard cheetah rhino hippo buffalo bison antelope skunk badger mole bat""",
    "bird": """pigeon seagull duck goose swan chicken rooster turkey peacock eagle hawk owl crow
        raven sparrow robin parrot pelican penguin flamingo heron stork ostrich woodpecker swallow
        magpie finch canary quail falcon vulture""",
    "insect": """bee wasp ant beetle butterfly moth dragonfly grasshopper cricket spider ladybug
        mosquito cockroach caterpillar centipede scorpion snail slug worm""",
    "furniture": """table chair couch bed desk shelf cabinet drawer dresser nightstand bookcase
        stool bench armchair ottoman sofa wardrobe sideboard cupboard crib hammock recliner futon
        bookshelf coffee_table side_table rocking_chair chest vanity lectern bunk_bed filing_cabinet
        high_chair throne pew""",
    "fish": """salmon trout tuna goldfish eel carp catfish cod herring sardine swordfish clownfish
        pufferfish stingray seahorse jellyfish octopus squid starfish clam oyster
        sea_urchin anchovy barracuda""",
    "appliance": """stove oven refrigerator microwave dishwasher toaster blender kettle freezer
        mixer coffee_maker washing_machine dryer vacuum heater air_conditioner fan iron juicer
        toaster_oven rice_cooker water_heater humidifier bread_maker waffle_iron food_processor
        ice_maker sewing_machine hair_dryer range_hood""",
    "device": """phone laptop computer monitor keyboard television camera printer scanner speaker
        radio tablet remote router modem projector microphone headphones webcam calculator
        telescope microscope binoculars joystick game_console hard_drive antenna satellite_dish
        thermostat smoke_alarm answering_machine walkie_talkie turntable amplifier metronome
        voltmeter flash_drive""",
    "clothing": """shirt pants jacket coat dress skirt sweater shorts jeans vest suit hoodie blouse
        uniform robe apron tuxedo kimono raincoat cardigan pajamas swimsuit bikini leggings overalls
        poncho tunic gown jersey sweatshirt tank_top bathrobe wetsuit corset kilt parka blazer""",
    "accessory": """hat cap scarf tie belt glove mitten watch necklace bracelet earring ring purse
        backpack handbag wallet umbrella sunglasses goggles helmet bow_tie headband bandana veil
        brooch cufflink suspenders tiara crown mask badge lanyard briefcase suitcase""",
    "footwear": """shoe boot sandal sneaker slipper flip_flop sock high_heel loafer ice_skate
        roller_skate ski_boot clog moccasin snowshoe""",
    "vehicle": """car truck bus van taxi motorcycle bicycle scooter train tram tractor ambulance
        fire_truck trailer wagon carriage limousine jeep pickup minivan bulldozer excavator forklift
        tricycle unicycle go_kart golf_cart tank snowmobile locomotive police_car dump_truck
        cement_mixer tow_truck camper rickshaw sled stroller wheelchair""",
    "watercraft": """boat ship canoe kayak raft sailboat yacht ferry barge gondola submarine rowboat
        speedboat tugboat catamaran dinghy surfboard paddle_board jet_ski""",
    "aircraft": """airplane helicopter jet glider balloon blimp drone biplane parachute rocket
        seaplane hang_glider space_shuttle""",
    "fruit": """apple banana lemon lime grape cherry strawberry blueberry raspberry peach pear
        plum apricot mango papaya pineapple watermelon melon kiwi coconut pomegranate fig date
        grapefruit tangerine cranberry blackberry avocado guava lychee nectarine""",
    "vegetable": """carrot potato tomato onion garlic pepper cucumber lettuce cabbage broccoli
        cauliflower spinach celery corn pea bean eggplant zucchini pumpkin radish beet turnip
        asparagus artichoke mushroom leek kale parsley basil cilantro okra squash parsnip ginger
        sweet_potato brussels_sprout""",
    "food": """bread sandwich pizza burger hot_dog pasta rice soup salad cheese egg omelette steak
        sausage bacon ham fish_stick shrimp lobster crab noodle sushi taco burrito pancake waffle
        cereal pretzel bagel tofu meatball dumpling casserole stew curry lasagna french_fries nacho
        popcorn cracker hummus gravy quiche kebab""",
    "dessert": """cake cookie pie donut muffin cupcake brownie ice_cream pudding chocolate candy
        pastry croissant macaroon tart cheesecake lollipop marshmallow fudge sorbet eclair
        cinnamon_roll gingerbread meringue""",
    "drink": """water_bottle coffee tea milk juice soda beer wine lemonade smoothie cocktail
        milkshake champagne cider hot_chocolate espresso whiskey energy_drink""",
    "tableware": """plate bowl cup mug tumbler saucer platter tray pitcher teapot wine_glass napkin
        tablecloth placemat salt_shaker pepper_mill sugar_bowl gravy_boat coaster jug goblet
        candlestick chopsticks fork spoon knife""",
    "cookware": """pot pan skillet wok spatula ladle whisk grater colander strainer rolling_pin
        cutting_board measuring_cup peeler corkscrew can_opener tongs cake_pan muffin_tin
        casserole_dish mixing_bowl pizza_cutter garlic_press baster funnel sieve mortar""",
    "container": """box bag bottle basket bucket barrel jar can crate bin trash_can vase jewelry_box
        toolbox cooler lunch_box mailbox carton tub cage envelope sack canister thermos piggy_bank
        aquarium planter pouch dumpster urn""",
    "tool": """hammer screwdriver wrench pliers saw drill axe shovel rake hoe ladder broom mop
        paintbrush chisel clamp crowbar tape_measure wheelbarrow lawn_mower chainsaw sander level
        hacksaw pickaxe pitchfork sickle anvil trowel plunger hose flashlight stapler scissors
        soldering_iron paint_roller hedge_trimmer sledgehammer""",
    "weapon": """sword spear shield cannon rifle pistol dagger catapult crossbow bayonet club_stick
        slingshot whip musket grenade armor sheath""",
    "medical_item": """syringe stethoscope bandage thermometer crutch pill stretcher scalpel
        wheeled_bed first_aid_kit hearing_aid inhaler test_tube beaker flask petri_dish gauze
        walking_cane x_ray eye_chart cotton_ball tweezers""",
    "craft_item": """yarn needle thread button ribbon fabric zipper knitting_needle thimble bead
        clay glue glitter loom quilt pin_cushion palette canvas potter_wheel origami stencil
        spool embroidery""",
    "natural_object": """rock boulder log stump pebble shell feather nest cobweb leaf branch twig
        acorn pine_cone icicle snowman puddle sand_castle campfire crystal bone fossil beehive
        anthill haystack mushroom_ring driftwood coral egg_shell antler""",
    "toy": """teddy_bear doll kite frisbee yo_yo puzzle lego rubber_duck action_figure toy_car
        puppet dollhouse rocking_horse spinning_top toy_robot marble slinky board_game dice
        playing_card hula_hoop jump_rope pinwheel water_gun""",
    "sports_equipment": """ball bat_stick racket skateboard snowboard ski soccer_ball basketball
        football tennis_ball baseball golf_ball golf_club hockey_stick bowling_ball bowling_pin
        dumbbell barbell treadmill punching_bag volleyball badminton_racket shuttlecock dart
        dartboard arrow bow javelin discus hurdle trampoline baseball_glove knee_pad paddle
        pool_cue""",
    "instrument": """guitar piano violin drum trumpet flute saxophone clarinet cello harp banjo
        accordion harmonica trombone tuba xylophone tambourine ukulele bagpipe oboe triangle cymbal
        synthesizer organ maraca""",
    "plant": """tree bush flower grass fern cactus rose tulip daisy sunflower lily orchid ivy moss
        palm_tree pine_tree oak bamboo vine weed shrub bonsai lavender dandelion willow maple
        clover hedge potted_plant seaweed wreath""",
    "building": """house barn church castle tower skyscraper cottage cabin shed garage warehouse
        factory school hospital hotel library museum temple mosque lighthouse windmill stadium
        greenhouse tent igloo gazebo palace mansion bungalow silo kiosk chapel""",
    "structure": """bridge fence wall gate fountain statue monument dock pier tunnel dam arch column
        staircase railing chimney balcony porch deck well scaffold billboard flagpole bleachers
        swing slide seesaw carousel ferris_wheel roller_coaster picnic_table""",
    "street_object": """traffic_light stop_sign street_sign fire_hydrant parking_meter lamp_post
        phone_booth bus_stop traffic_cone manhole crosswalk_sign barricade newspaper_box bike_rack
        road_sign utility_pole storm_drain speed_bump toll_booth""",
    "household_item": """lamp mirror clock pillow blanket rug curtain towel candle picture_frame
        chandelier lampshade doormat hanger laundry_basket shower_curtain bath_mat soap sponge
        toothbrush toothpaste comb hairbrush razor shampoo tissue_box toilet_paper toilet sink
        bathtub faucet shower fireplace radiator light_bulb light_switch door_knob key padlock
        window_blind ashtray matchbox fire_extinguisher""",
    "office_supply": """book notebook pen pencil marker crayon eraser ruler paper folder binder
        paper_clip thumbtack clipboard magazine newspaper calendar map globe chalk blackboard
        whiteboard easel stamp postcard sticky_note hole_punch pencil_sharpener tape_dispenser
        rubber_band diary dictionary poster certificate passport""",
}

COLOURS = [
    "red",
    "blue",
    "green",
    "yellow",
    "white",
    "black",
    "brown",
    "gray",
    "orange",
    "purple",
    "pink",
]
SIZES = ["small", "large"]
MATERIALS = {
    "hard": ["wood", "metal", "plastic", "glass", "stone"],
    "soft": ["cotton", "leather", "wool", "silk", "rubber"],
    "food": [],
    "living": [],
}
STATES = {
    "hard": ["clean", "dirty", "broken", "shiny", "open", "closed"],
    "soft": ["clean", "dirty", "torn", "striped", "folded", "wet"],
    "food": ["fresh", "rotten", "sliced", "cooked", "raw", "frozen"],
    "living": ["standing", "sitting", "walking", "sleeping", "eating", "running"],
}
NATURE = {  # of a category; those that are not here are hard things
    "person": "living",
    "animal": "living",
    "bird": "living",
    "fish": "living",
    "insect": "living",
    "clothing": "soft",
    "accessory": "soft",
    "footwear": "soft",
    "craft_item": "soft",
    "fruit": "food",
    "vegetable": "food",
    "food": "food",
    "dessert": "food",
    "drink": "food",
}
PLACES: dict[str, str] = {  # which categories are seen there
    "kitchen": "appliance food fruit vegetable dessert drink tableware cookware furniture person",
    "living room": "furniture device household_item person animal toy plant office_supply",
    "bedroom": "furniture clothing household_item accessory footwear device person toy",
    "office": "office_supply device furniture person accessory container drink",
    "street": "vehicle person street_object building structure accessory clothing animal",
    "park": "plant person animal bird sports_equipment toy natural_object insect clothing",
    "farm": "animal bird vehicle plant building tool vegetable insect person",
    "beach": "watercraft person sports_equipment footwear accessory bird toy container",
    "airport": "aircraft vehicle person accessory building device clothing",
    "workshop": "tool container device craft_item weapon vehicle person household_item",
    "market": "fruit vegetable food dessert drink container person clothing bird",
    "restaurant": "food dessert drink tableware person furniture clothing cookware",
    "stage": "instrument person clothing device furniture footwear accessory",
    "garden": "plant insect bird tool vegetable structure animal natural_object",
    "hospital": "medical_item person furniture device clothing container office_supply",
    "museum": "weapon person building structure natural_object craft_item accessory",
    "aquarium": "fish person natural_object plant container device clothing",
    "harbor": "watercraft bird person structure container building fish tool",
}
OPPOSITE = {
    "to the left of": "to the right of",
    "to the right of": "to the left of",
    "above": "below",
    "below": "above",
}
"""Spatial relations, which hold between any two objects that are far enough apart."""

ACTION = {  # what people do with the things of a category
    **dict.fromkeys(("clothing", "accessory", "footwear"), "wearing"),
    **dict.fromkeys(("vehicle", "watercraft"), "riding"),
    **dict.fromkeys(
        [
            "fruit",
            "vegetable",
            "food",
            "dessert",
            "drink",
            "tableware",
            "cookware",
            "container",
            "tool",
            "toy",
            "weapon",
            "sports_equipment",
            "instrument",
            "device",
            "office_supply",
            "household_item",
            "craft_item",
        ],
        "holding",
    ),
}
