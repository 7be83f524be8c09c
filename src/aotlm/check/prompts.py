"""The texts that `inv check` compares on."""

from typing import Final

PROMPTS: Final = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about a lighthouse in winter.",
    "List five fruits that are red.",
    "Translate to Spanish: The library opens at nine in the morning.",
    "What is 17 times 23? Show the steps.",
    "Give me a recipe for pancakes with three ingredients.",
    "Who wrote Pride and Prejudice, and when was it published?",
    "Summarise the story of the tortoise and the hare.",
    "Write a Python function that reverses a string.",
    "What are the phases of the moon?",
    "Describe the taste of coffee to someone who has never had it.",
    "Name three countries in South America and their capitals.",
    "How does a bicycle stay upright?",
    "Suggest a name for a small bakery by the sea.",
    "What is the difference between weather and climate?",
    "Continue the sentence: When the train finally arrived,",
    "Convert 100 degrees Fahrenheit to Celsius.",
    "Why do cats purr?",
    "Give one argument for and one against working from home.",
)
