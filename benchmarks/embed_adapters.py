"""Adapter descriptions and what users would ask them for: does the embedder pick the right one?

Written for this test, without looking at any embedder's answers: 68 descriptions, three requests each. The
requests avoid the description's own words where people would.
"""

from __future__ import annotations

# description → requests
ADAPTERS: dict[str, tuple[str, ...]] = {
    "Watercolour painting style with soft washes and visible paper texture": (
        "paint my cat like an aquarelle",
        "loose brush wash artwork of a harbour",
        "gentle wet-on-wet landscape with bleeding colours",
    ),
    "Pixel art sprites in 16-bit console game style": (
        "retro video game character sheet",
        "make an 8-bit looking hero",
        "tiny sprite of a sword for my platformer",
    ),
    "Photorealistic portrait skin detail enhancer": (
        "close-up of an old man's face, realistic pores",
        "lifelike headshot photograph",
        "sharpen the wrinkles and freckles in this face picture",
    ),
    "Anime cel shading, clean line art and flat colours": (
        "japanese cartoon schoolgirl drawing",
        "manga-like coloured illustration",
        "draw my character as if in a Ghibli film",
    ),
    "Isometric low-poly 3D room dioramas": (
        "tiny bedroom seen from above at an angle in simple 3d",
        "cute geometric miniature office render",
        "low polygon model of a kitchen interior",
    ),
    "Architectural blueprint and floor plan drawings": (
        "technical plan of a two storey house",
        "draw the layout of an apartment with measurements",
        "building drawing with walls, doors and dimensions",
    ),
    "Product photography on a plain white studio background": (
        "ecommerce shot of a perfume bottle",
        "catalogue picture of sneakers, no background",
        "clean photo of a watch for my online store",
    ),
    "Film noir black and white cinematography with hard shadows": (
        "moody 1940s detective scene",
        "monochrome crime movie still",
        "a private eye in a dark alley, venetian blind shadows",
    ),
    "Claymation stop-motion characters in plasticine": (
        "aardman-like clay figure of a sheep",
        "modelling clay puppet animation",
        "a dough man with thumbprints in the clay",
    ),
    "Medieval illuminated manuscript with gold leaf borders": (
        "monk's book page with ornate capital letters",
        "old parchment decorated with gilded margins",
        "a knight as drawn in a codex of the middle ages",
    ),
    "Generates SQL queries from natural language questions": (
        "how many orders were placed last month, from the database",
        "turn this question into a select statement",
        "join the customers table with invoices and group by country",
    ),
    "Python unit test writer using pytest": (
        "write tests for my function",
        "generate test cases with fixtures and asserts",
        "I need better coverage for this python module",
    ),
    "Summarises legal contracts and highlights obligations": (
        "what am I agreeing to in this lease",
        "short version of this NDA with the duties of each party",
        "list the termination clauses of the agreement",
    ),
    "Translates English to French with formal register": (
        "say this politely in french",
        "traduire ce texte",
        "translate the letter for our partner in Paris",
    ),
    "Medical question answering about symptoms and drugs": (
        "what are the side effects of ibuprofen",
        "I have a fever and a rash, what could it be",
        "can I take aspirin together with antibiotics",
    ),
    "Customer support replies for an online shop, friendly tone": (
        "a buyer complains that the parcel is late, answer nicely",
        "respond to a refund request",
        "answer a shopper who got the wrong size",
    ),
    "Sentiment and emotion classification of tweets": (
        "is this post angry or happy",
        "detect the mood of social media messages",
        "label these tweets as positive or negative",
    ),
    "Step by step solver for school mathematics word problems": (
        "a train leaves at 5pm at 60 km/h, when does it arrive",
        "help with my algebra homework",
        "solve for x and show every step",
    ),
    "Chess commentary and move explanation": (
        "why is knight f6 good here",
        "analyse this sicilian opening game",
        "what should white play after castling",
    ),
    "Cooking recipes from a list of ingredients": (
        "what can I make with eggs, spinach and feta",
        "dinner idea using leftover chicken",
        "how do I bake bread with only flour, water and yeast",
    ),
    "Role-play fantasy dungeon master for tabletop games": (
        "you enter a dark cave, roll for initiative",
        "narrate an adventure with dragons and wizards",
        "my elf attacks the goblin with a bow, what happens",
    ),
    "Extracts names, places and organisations from news text": (
        "named entity recognition",
        "list every person and company mentioned in the article",
        "which cities and ministers occur in this report",
    ),
    "Rewrites text in simple plain English for children": (
        "explain this so a ten year old understands",
        "make the paragraph easier to read",
        "simplify the language for kids",
    ),
    "Writes commit messages from git diffs": (
        "describe these code changes in one line",
        "changelog entry for my patch",
        "what should I write for this git commit",
    ),
    "JSON function calling and tool use formatting": (
        "return the arguments as structured data for the api",
        "call the weather tool with parameters",
        "answer only with a json object that fits the schema",
    ),
    "Poetry in the form of haiku and sonnets": (
        "compose a short verse about autumn",
        "rhyming lines for valentine's day",
        "a poem of seventeen syllables about the sea",
    ),
    "Financial report analysis and earnings call summaries": (
        "what was the quarterly revenue growth",
        "key points from the shareholder conference",
        "compare the operating margin with last year's",
    ),
    "Rust programming language code completion": (
        "finish this borrow checker friendly function",
        "cargo crate with traits and lifetimes",
        "fn main that matches on an enum and unwraps the result",
    ),
    "Spoken dialogue in Scottish dialect": (
        "talk like someone from Glasgow",
        "aye, speak in a highland accent",
        "answer me the way folk in Edinburgh do",
    ),
    "Safety filter that refuses harmful or illegal requests": (
        "moderate dangerous content",
        "decline instructions for building weapons",
        "block abusive and criminal prompts",
    ),
    "Talks like a pirate captain of the high seas": (
        "arr matey, where is the treasure",
        "answer as a buccaneer on a ship would",
        "shiver me timbers, tell me about the weather",
    ),
    "Shakespearean early modern English, thee and thou": (
        "rewrite this as the bard would have said it",
        "speak to me in the tongue of Hamlet",
        "elizabethan insults for my friend",
    ),
    "Bedtime stories for toddlers with animals": (
        "tell my little daughter a tale about a sleepy bear",
        "a calm good night story with a rabbit",
        "once upon a time there was a small fox",
    ),
    "Job interview coach and feedback on answers": (
        "what do I say when they ask about my weaknesses",
        "prepare me for the recruiter tomorrow",
        "practise questions for a hiring manager round",
    ),
    "Writes CVs and cover letters for applicants": (
        "improve my resume for a nursing position",
        "application letter for an internship",
        "list my work experience in a professional way",
    ),
    "Travel itineraries and sightseeing tips for cities": (
        "three days in Lisbon, what should we see",
        "plan a weekend trip to Rome",
        "which museums are worth a visit in Berlin",
    ),
    "Personal fitness trainer with workout plans": (
        "exercises for stronger legs without a gym",
        "how do I train for a half marathon",
        "a weekly routine of push-ups and squats",
    ),
    "Gardening advice for vegetables and balcony plants": (
        "when do I sow tomatoes",
        "the leaves of my basil turn yellow",
        "which flowers grow in the shade",
    ),
    "Dog training and pet behaviour help": (
        "my puppy bites the furniture",
        "teach a beagle to come when called",
        "the cat scratches the sofa at night",
    ),
    "Tax return assistance for freelancers": (
        "which expenses can I deduct as self-employed",
        "how much income tax do I owe this year",
        "do I have to charge VAT on my invoices",
    ),
    "Kubernetes and Docker configuration helper": (
        "write a deployment yaml with three replicas",
        "my container keeps restarting in the cluster",
        "dockerfile for a small go service",
    ),
    "Explains error messages and stack traces": (
        "what does null pointer exception mean here",
        "my program crashed with this traceback",
        "why do I get a segmentation fault",
    ),
    "Regular expression generator and explainer": (
        "pattern that matches an email address",
        "what does ^[a-z]+$ do",
        "regex to find dates in a log",
    ),
    "Bash shell one-liners for Linux administration": (
        "delete all files older than a week from the terminal",
        "find the biggest folders on disk with the command line",
        "awk script that sums up a column",
    ),
    "React and TypeScript front-end components": (
        "a button with a loading spinner in jsx",
        "use a hook to keep the form state",
        "web page component with props and css",
    ),
    "Verilog hardware description for FPGA designs": (
        "write a counter module with clock and reset",
        "synthesizable state machine for a chip",
        "rtl code of a uart receiver",
    ),
    "Scientific abstract writer for biology papers": (
        "summarise our findings on cell growth for a journal",
        "shorten the results of my gene expression study",
        "academic summary about proteins in yeast",
    ),
    "Chemistry tutor for reactions and stoichiometry": (
        "balance this equation of iron and oxygen",
        "how many moles of salt are in the solution",
        "what happens when an acid meets a base",
    ),
    "Physics explanations with everyday examples": (
        "why does a spinning top not fall over",
        "explain gravity and inertia",
        "how can light be a wave and a particle",
    ),
    "History teacher for ancient Rome and Greece": (
        "why did Caesar cross the Rubicon",
        "how did the Athenians vote",
        "tell me about gladiators and emperors",
    ),
    "Spanish conversation partner for beginners": (
        "hola, quiero practicar",
        "let's have an easy chat to learn castellano",
        "correct my sentences, I am learning the language of Madrid",
    ),
    "German grammar correction with explanations": (
        "is it der, die or das Haus",
        "fix the cases in my Deutsch sentence",
        "ich habe gestern nach Hause gegangen, what is wrong",
    ),
    "Japanese to English translation of manga dialogue": (
        "what does this speech bubble in kanji say",
        "render the comic's lines from Tokyo in English",
        "translate nihongo text of a graphic novel",
    ),
    "Music theory and chord progression composer": (
        "which chords fit a sad song in A minor",
        "write a jazz progression with sevenths",
        "how do I modulate from C major to G",
    ),
    "Song lyrics in the style of country music": (
        "verses about a pickup truck and a lost love",
        "write a nashville ballad with a chorus",
        "words for a tune with banjo and whiskey",
    ),
    "Rap battles with punchlines and internal rhymes": (
        "diss my opponent with hip hop bars",
        "spit a freestyle about money",
        "write sixteen bars with a hard flow",
    ),
    "Stand-up comedy jokes and puns": (
        "make me laugh about airports",
        "a witty one-liner on marriage",
        "funny wordplay with cheese",
    ),
    "Horror stories with slow building dread": (
        "a scary tale about a cellar door",
        "something creepy that happens at midnight",
        "write a ghost story that keeps me awake",
    ),
    "Science fiction worldbuilding with starships and aliens": (
        "describe a civilisation on a moon of Jupiter",
        "the crew of a spaceship meets another species",
        "invent a galactic empire and its technology",
    ),
    "Weather report presenter for television": (
        "announce tomorrow's rain and wind",
        "forecast for the coast with sunny spells",
        "tell the viewers about the coming snow storm",
    ),
    "Football match commentary, live and excited": (
        "the striker shoots and it's a goal",
        "describe the penalty in the last minute",
        "play-by-play of the cup final",
    ),
    "Meditation guide with calm breathing exercises": (
        "help me to relax before sleep",
        "a mindful minute to let go of stress",
        "lead me slowly, breathe in and out",
    ),
    "Marketing slogans and advertisement copy": (
        "a catchy line for my new lemonade",
        "text for a billboard that sells running shoes",
        "promote our app in one sentence",
    ),
    "Meeting minutes and action items from transcripts": (
        "who has to do what after this call",
        "notes from the recorded conference with decisions",
        "protocol of our weekly team discussion",
    ),
    "Wine and food pairing sommelier": (
        "which bottle goes with grilled salmon",
        "a red for a beef stew",
        "what do I pour with blue cheese",
    ),
    "Crossword and riddle solver": (
        "seven letters, capital of Kenya",
        "I have keys but open no locks, what am I",
        "clue: river in Egypt, four boxes",
    ),
    "Wedding speeches and toasts": (
        "what should the best man say",
        "a few warm sentences for the bride and groom",
        "raise a glass to my sister's marriage",
    ),
    "Vintage travel poster illustrations in art deco style": (
        "1930s advertisement of the Riviera",
        "stylised retro print of a mountain railway",
        "old-fashioned tourism placard with bold shapes",
    ),
}

DESCRIPTIONS = tuple(ADAPTERS)
QUERIES = tuple((query, place) for place, asked in enumerate(ADAPTERS.values()) for query in asked)


def places(scores: list[list[float]]) -> list[int]:
    """For the scores of each query with each description: the place of the right one, 1 for the best."""
    return [
        sum(other >= row[right] for other in row)  # ties count against
        for row, (_, right) in zip(scores, QUERIES, strict=True)
    ]
