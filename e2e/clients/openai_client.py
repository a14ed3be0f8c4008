"""openai-python against penstock, unmodified: usage: openai_client.py BASE_URL"""
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none")
assert [m.id for m in client.models.list()] == ["tiny"]

plain = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=12, temperature=0)
assert plain.usage.completion_tokens == 12, plain.usage

text, usage = "", None
for event in client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=12,
                                            temperature=0, stream=True, stream_options={"include_usage": True}):
    if event.choices:
        text += event.choices[0].delta.content or ""
    else:
        usage = event.usage
assert text == plain.choices[0].message.content, (text, plain)
assert usage.completion_tokens == 12, usage

raw = client.completions.with_raw_response.create(model="tiny", prompt="abc", max_tokens=4, temperature=0)
assert raw.parse().usage.completion_tokens == 4
assert raw.headers["x-request-id"] and raw.headers["x-penstock-node"]

stream = client.completions.create(model="tiny", prompt="abc", max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
next(iter(stream))
stream.close()

for name, call in {
    "model_not_found": lambda: client.completions.create(model="nope", prompt="x"),
    "400": lambda: client.completions.create(model="tiny", prompt="x", max_tokens=-1),
}.items():
    try:
        call()
    except openai.APIStatusError as err:
        assert err.status_code in (400, 404), err
        assert err.body["message"], err.body
    else:
        raise AssertionError(name)
print("openai-python", openai.__version__, "ok")
