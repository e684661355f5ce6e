"""Texts that prompts are cut from: one by default, and others to draw from."""

TEXTS = {
    "default": (
        "Write a long story about a small town by the sea. Begin with the people who live there, "
        "say what each of them does in the morning, and tell what happens on the day when a "
        "stranger comes with a wooden box that nobody is allowed to open. Describe the weather, "
        "the houses and the harbour, let the people talk to each other, and end the story with "
        "what was in the box and who kept it."
    ),
    "summary": (
        "Summarise the following report for a reader who has five minutes. Name the question it "
        "asks, how it was studied, what was found, and what remains open. Keep every number that "
        "the conclusion depends on and leave out the rest."
    ),
    "letter": (
        "Write a polite letter to a landlord about a heating that has been broken for two weeks. "
        "Say when it was first reported, who came to look at it, what it has cost since then, "
        "and by which day it must be repaired."
    ),
    "code review": (
        "Review the following change as a careful colleague would. Say first what it does well, "
        "then which cases it forgets, which names mislead, and which test would have shown the "
        "fault. End with whether you would accept it."
    ),
    "recipe": (
        "Plan a dinner for six guests, one of whom eats no meat and one no nuts. List what to buy "
        "with amounts, give the steps in the order in which they are done, and say what can be "
        "prepared on the day before."
    ),
    "history": (
        "Explain how the railway changed the towns it reached in the nineteenth century. Compare "
        "a town with a station to one without, consider prices, work, time and travel, and give "
        "reasons rather than dates."
    ),
    "physics": (
        "Explain to a student why the sky is blue during the day and red in the evening. Start "
        "from what light is, go on with what happens to it in the air, and use an experiment that "
        "can be done at home with a glass of milk and a lamp."
    ),
    "translation": (
        "Translate the following text into plain modern language. Keep the order of its thoughts "
        "and the tone of its author, replace words that nobody uses any more, and mark each place "
        "where the meaning is uncertain."
    ),
    "plan": (
        "Make a plan for moving an office of thirty people to another building within one week. "
        "Say who does what on which day, what can go wrong, how that would be noticed, and what "
        "would be done about it."
    ),
    "biography": (
        "Tell the life of a clock maker who lived to see the first electric clocks. Describe the "
        "workshop, the apprentices and the customers, and how the old craft looked upon the new "
        "machine at first and at last."
    ),
    "debate": (
        "Give the three strongest arguments for and against closing the centre of a city to cars. "
        "Let each side answer the other once, then say which facts would settle the question and "
        "how they could be collected."
    ),
    "table": (
        "Turn the following notes into a table with one line for each order. The columns are the "
        "day, the customer, the goods, the amount and the price. Write a question mark where the "
        "notes say nothing, and add the total below."
    ),
    "interview": (
        "Prepare an interview with a nurse who has worked at night for twenty years. Write ten "
        "questions that cannot be answered with yes or no, put them in a good order, and explain "
        "what each of them should bring to light."
    ),
    "travel": (
        "Describe a journey on foot along a river from its spring to its mouth. Tell what the "
        "traveller sees on each day, whom they meet, where they sleep, and how the water, the "
        "land and the language change on the way."
    ),
    "manual": (
        "Write the manual of a coffee machine for people who have never used one. Name the parts, "
        "explain the first use, daily cleaning and the three most common faults, and warn of what "
        "is hot before it is touched."
    ),
    "news": (
        "Write a report for a local newspaper about a bridge that was opened one year late. Ask "
        "the builder, the mayor and a baker whose shop stands beside it, and keep what is known "
        "apart from what is said."
    ),
    "garden": (
        "Advise somebody who wants to grow vegetables on a balcony that has sun only in the "
        "morning. Say what grows there and what does not, how large the pots must be, when to "
        "sow, and how much water is enough."
    ),
    "contract": (
        "Read the following contract for a person who is not a lawyer. List what they promise, "
        "what is promised to them, how it can be ended, and which sentences they should ask "
        "about before they sign."
    ),
    "game": (
        "Invent a board game for two to four players that takes half an hour. Describe the board "
        "and the pieces, write the rules so that nobody has to ask, and play the first two rounds "
        "as an example."
    ),
    "astronomy": (
        "Explain how people found out that the earth moves around the sun although nobody feels "
        "it. Tell which observations did not fit the older picture, who noticed them, and why the "
        "new picture took so long to be believed."
    ),
    "music": (
        "Compare a string quartet with a jazz band. Consider who leads, what is written down and "
        "what is invented while playing, how the players listen to each other, and what the "
        "audience is expected to do."
    ),
}
