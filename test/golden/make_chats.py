"""Writes chats.jsonl: what Hugging Face's apply_chat_template makes of conversations, for the templates that trainctl knows.

Each line: {"template": name, "jinja": template, "messages": [...], "text": rendered}. Made with transformers 5.24 (its renderer alone,
without a tokenizer); bos_token and eos_token are those below:
    make_chats.py chats.jsonl
The templates have the markers and the renderings of the published ones, without their tools, images and checks of roles:
chatml: Qwen/Qwen2.5-0.5B-Instruct, HuggingFaceTB/SmolLM2-135M-Instruct; qwen3: Qwen/Qwen3-0.6B; llama3: meta-llama/Meta-Llama-3-8B-Instruct;
llama3.1: meta-llama/Llama-3.1-8B-Instruct; gemma: google/gemma-2-2b-it; gemma3: google/gemma-3-1b-it; mistral, mistral-v3:
mistralai/Mistral-7B-Instruct-v0.2, -v0.3; mistral-tekken: mistralai/Mistral-Nemo-Instruct-2407; zephyr: HuggingFaceH4/zephyr-7b-beta;
tulu: allenai/Llama-3.1-Tulu-3-8B; olmo2: allenai/OLMo-2-0425-1B-Instruct.
"""
import json
import sys

from transformers.utils.chat_template_utils import render_jinja_template

TURNS = ("{%- for m in messages %}{%- if loop.first and m.role != 'system' %}SYSTEM{%- endif %}"
         "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{%- endfor %}")
LLAMA = ("{{- BEGIN }}{%- for m in messages %}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + "
         "'<|eot_id|>' }}{%- endfor %}")
LLAMA31 = ("{{- bos_token }}{%- if messages[0].role == 'system' %}{%- set system_message = messages[0].content | trim %}"
           "{%- set messages = messages[1:] %}{%- else %}{%- set system_message = '' %}{%- endif %}"
           "{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}{{- 'Cutting Knowledge Date: December 2023\\n' }}"
           "{{- 'Today Date: ' + '26 Jul 2024' + '\\n\\n' }}{{- system_message }}{{- '<|eot_id|>' }}"
           "{%- for m in messages %}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}"
           "{%- endfor %}")
GEMMA = ("{{ bos_token }}{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
         "{{ '<start_of_turn>' + role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}{% endfor %}")
GEMMA3 = ("{{ bos_token }}{%- if messages[0].role == 'system' -%}{%- set first_user_prefix = messages[0].content + '\\n\\n' -%}"
          "{%- set loop_messages = messages[1:] -%}{%- else -%}{%- set first_user_prefix = '' -%}{%- set loop_messages = messages -%}"
          "{%- endif -%}{%- for m in loop_messages -%}{%- set role = 'model' if m.role == 'assistant' else m.role -%}"
          "{{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else '') }}{{ m.content | trim }}"
          "{{ '<end_of_turn>\\n' }}{%- endfor -%}")
QWEN3 = ("{%- set ns = namespace(last_query_index=messages | length - 1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
         "{%- set ns.last_query_index = loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}{%- if m.role != 'assistant' %}"
         "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{%- else %}{%- set content = m.content %}"
         "{%- set thought = '' %}{%- if '</think>' in content %}"
         "{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"
         "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
         "{%- if loop.index0 > ns.last_query_index and (loop.last or thought) %}"
         "{{- '<|im_start|>assistant\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}"
         "{%- else %}{{- '<|im_start|>assistant\\n' + content }}{%- endif %}{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}")
MISTRAL = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
           "{% else %}{{ m.content + eos_token}}{% endif %}{% endfor %}")


def mistral(before, after, answer):
    return ("{%- if messages[0].role == 'system' %}{%- set system_message = messages[0].content %}{%- set messages = messages[1:] %}"
            "{%- endif %}{{- bos_token }}{%- set last_user = messages | selectattr('role', 'equalto', 'user') | list | last %}"
            "{%- for m in messages %}{%- if m.role == 'user' %}{%- if system_message is defined and m == last_user %}"
            f'{{{{- "{before}" + system_message + "\\n\\n" + m.content + "{after}" }}}}{{%- else %}}'
            f'{{{{- "{before}" + m.content + "{after}" }}}}{{%- endif %}}{{%- else %}}{{{{- {answer} + eos_token }}}}'
            "{%- endif %}{%- endfor %}")


def tulu(begin):
    return (begin + "{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + '\\n' }}"
            "{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '\\n' }}"
            "{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\\n'  + message['content'] + eos_token + '\\n' }}"
            "{% else %}{{ '<|assistant|>\\n'  + message['content'] + eos_token }}{% endif %}{% endif %}{% endfor %}")


ZEPHYR = ("{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\\n' + message['content'] + eos_token }}\n"
          "{% elif message['role'] == 'system' %}\n{{ '<|system|>\\n' + message['content'] + eos_token }}\n"
          "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\\n'  + message['content'] + eos_token }}\n{% endif %}\n{% endfor %}")
SYSTEM = "{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}"
TEMPLATES = [
    ("chatml", TURNS.replace("SYSTEM", SYSTEM), "", "<|endoftext|>"),
    ("chatml", TURNS.replace("SYSTEM", ""), "", "<|endoftext|>"),
    ("qwen3", QWEN3, "", "<|im_end|>"),
    ("llama3", LLAMA.replace("BEGIN", "bos_token"), "<|begin_of_text|>", "<|eot_id|>"),
    ("llama3.1", LLAMA31, "<|begin_of_text|>", "<|eot_id|>"),
    ("gemma", GEMMA, "<bos>", "<eos>"),
    ("gemma3", GEMMA3, "<bos>", "<eos>"),
    ("mistral", MISTRAL, "<s>", "</s>"),
    ("mistral-v3", mistral("[INST] ", "[/INST]", '" " + m.content | trim'), "<s>", "</s>"),
    ("mistral-tekken", mistral("[INST]", "[/INST]", "m.content"), "<s>", "</s>"),
    ("zephyr", ZEPHYR, "<s>", "</s>"),
    ("tulu", tulu(""), "", "</s>"),
    ("olmo2", tulu("{{ bos_token }}"), "<|endoftext|>", "<|endoftext|>"),
]
U, A, S = "user", "assistant", "system"
CHATS = [
    [(U, "What is 2+2?"), (A, "4")],
    [(S, "Be short."), (U, " Who?\n"), (A, "Me. \n"), (U, "Why so?"), (A, "Because.\n\nIt is so.")],
    [(U, "a"), (A, "<think>\none\n</think>\n\nb"), (U, "c"), (A, "<think>\ntwo\n\n</think>\n\nd")],
    [(S, ""), (U, "naïve 你好"), (A, "\nHi")],
]
with open(sys.argv[1], "w", encoding="utf-8") as out:
    for name, jinja, bos, eos in TEMPLATES:
        for chat in CHATS:
            messages = [{"role": role, "content": content} for role, content in chat]
            if chat[0][0] == S and name in ("gemma", "mistral"):
                continue   # they have no system messages
            rendered, _ = render_jinja_template(conversations=[messages], chat_template=jinja, bos_token=bos, eos_token=eos)
            line = {"template": name, "jinja": jinja, "eos": eos, "messages": messages, "text": rendered[0]}
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
