"""Every refusal as openai-python and LangChain see it: usage: refusals.py CLIENT BASE_URL ENGINE_PID

CLIENT is openai or langchain. Server and policy are those of refusals_test.go; keys are tenants' names.
"""
import contextlib
import os
import signal
import sys
import time

import openai

try:
    import httpx2 as httpx  # what later versions of openai-python are built on
except ImportError:
    import httpx

kind, base, engine = sys.argv[1], sys.argv[2] + "/v1", int(sys.argv[3])
seen = []  # the answers that came, retries included
http = httpx.Client(event_hooks={"response": [seen.append]}, timeout=60)


def client(key, retries=2):
    return openai.OpenAI(base_url=base, api_key=key, max_retries=retries, http_client=http)


def ask(key, retries=2, text="hi", model="sim", headers=None, tokens=4, extra=None):
    """One plain answer."""
    if kind == "openai":
        return client(key, retries).chat.completions.create(model=model, messages=[{"role": "user", "content": text}], max_tokens=tokens,
                                                            extra_headers=headers, extra_body={"ignore_eos": True, **(extra or {})})
    from langchain_openai import ChatOpenAI
    chat = ChatOpenAI(model=model, base_url=base, api_key=key, max_retries=retries, http_client=http, max_tokens=tokens,
                      default_headers=headers, extra_body={"ignore_eos": True, **(extra or {})})
    return chat.invoke(text)


@contextlib.contextmanager
def busy(key, tokens):
    """A streamed answer that runs meanwhile."""
    stream = client(key).chat.completions.create(model="sim", messages=[{"role": "user", "content": "x"}], max_tokens=tokens, stream=True,
                                                 extra_body={"ignore_eos": True})
    next(iter(stream))
    yield
    stream.close()


def refused(name, error, status, code, call, attempts=1, retry=None, told=False):
    """call must be refused so, after that many answers; retry is what Retry-After must be in, told whether not to retry."""
    seen.clear()
    try:
        call()
    except error as err:
        got = err
    else:
        raise AssertionError(name + ": no error")
    answer = got.response.headers
    assert got.status_code == status and got.code == code, (name, got.status_code, got.code, got)
    assert got.body["message"] and str(got.body["code"]) == code, (name, got.body)
    assert answer["x-penstock-reason"], (name, answer)
    after = int(answer.get("retry-after", 0))
    assert (retry is None) == (after == 0) and (retry is None or retry[0] <= after <= retry[1]), (name, after)
    assert (answer.get("x-should-retry") == "false") == told, (name, answer)
    assert len(seen) == attempts, (name, "answers", [r.status_code for r in seen])
    print(f"{name}: {type(got).__name__} {status} {code}, reason {answer['x-penstock-reason']}, retry-after {after}, {len(seen)} answers")


def recovers(name, call, first):
    """call must succeed at its second try, after the time it was told."""
    seen.clear()
    begin = time.monotonic()
    call()
    took = time.monotonic() - begin
    assert [r.status_code for r in seen] == [first, 200], (name, [r.status_code for r in seen])
    after = int(seen[0].headers["retry-after"])
    assert after <= took < after + 2, (name, after, took)
    print(f"{name}: {first}, told {after} s, came back after {took:.1f} s")


ask("plain")
assert "x-ratelimit-remaining-requests" in (ask("rate"), seen[-1])[1].headers
refused("own limit", openai.RateLimitError, 429, "rate_limit_exceeded", lambda: ask("rate", 0), retry=(1, 60))
ask("paced")
recovers("own limit, retried", lambda: ask("paced"), 429)
ask("budget")
refused("budget", openai.RateLimitError, 429, "insufficient_quota", lambda: ask("budget"), told=True)
with busy("narrow", 2000):
    refused("lane full", openai.RateLimitError, 429, "server_is_overloaded", lambda: ask("narrow", 0), retry=(1, 60))
refused("no engine", openai.InternalServerError, 503, "no_engine", lambda: ask("plain", 0, headers={"x-where": "nowhere"}), retry=(1, 60))
with busy("one", 2000):
    refused("deadline", openai.InternalServerError, 504, "queue_deadline_exceeded", lambda: ask("one", 0), retry=(1, 60))
    refused("deadline it named", openai.InternalServerError, 504, "queue_deadline_exceeded",
            lambda: ask("one", headers={"x-penstock-start-timeout-ms": "300"}), retry=(1, 60), told=True)
refused("not JSON the API has", openai.BadRequestError, 400, "invalid_request", lambda: ask("plain", extra={"n": "many"}))
refused("cannot ever fit", openai.BadRequestError, 400, "400", lambda: ask("plain", text="x" * 400_000))  # in the engine's own words
refused("no key", openai.AuthenticationError, 401, "invalid_api_key", lambda: ask("unknown"))
refused("forbidden", openai.PermissionDeniedError, 403, "forbidden", lambda: ask("barred"))
refused("model", openai.NotFoundError, 404, "model_not_found", lambda: ask("plain", model="nope"))
refused("body too big", openai.APIStatusError, 413, "body_too_large", lambda: ask("plain", text="x" * 40_000_000))

# An engine that is lost after the first token: the status is out, the stream says it.
stream = client("plain").chat.completions.create(model="sim", messages=[{"role": "user", "content": "x"}], max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
if kind == "langchain":
    from langchain_openai import ChatOpenAI
    stream.close()
    stream = ChatOpenAI(model="sim", base_url=base, api_key="plain", max_tokens=2000, extra_body={"ignore_eos": True}).stream("x")
try:
    for n, event in enumerate(stream):
        if n == 3:
            os.kill(engine, signal.SIGKILL)
except openai.APIError as err:
    assert err.code == "upstream_lost", (err.code, err)
    print(f"engine lost: {type(err).__name__} {err.code}")
else:
    raise AssertionError("a stream that was cut ended without an error")
print(kind, "ok")
