// Every refusal as openai-node and LangChain.js see it. usage: node refusals.mjs CLIENT BASE_URL ENGINE_PID NODE_MODULES
// CLIENT is openai or langchain. Server and policy are those of refusals_test.go; keys are tenants' names.
import assert from 'node:assert';
import { createRequire } from 'node:module';

const [kind, url, engine, modules] = process.argv.slice(2);
const require = createRequire(modules + '/');
const OpenAI = require('openai').default;
const baseURL = url + '/v1';
const seen = []; // the answers that came, retries included
const counted = async (...args) => {
  const answer = await fetch(...args);
  seen.push(answer);
  return answer;
};
const client = (apiKey, maxRetries = 2) => new OpenAI({ baseURL, apiKey, maxRetries, fetch: counted });
const chat = (apiKey, o = {}) => new (require('@langchain/openai').ChatOpenAI)({
  model: o.model ?? 'sim', apiKey, maxTokens: o.tokens ?? 4, maxRetries: o.retries ?? 2,
  modelKwargs: { ignore_eos: true, ...o.extra }, configuration: { baseURL, fetch: counted, defaultHeaders: o.headers },
});

// One plain answer.
function ask(key, o = {}) {
  const text = o.text ?? 'hi';
  if (kind === 'langchain') return chat(key, o).invoke(text);
  return client(key, o.retries).chat.completions.create(
    { model: o.model ?? 'sim', messages: [{ role: 'user', content: text }], max_tokens: 4, ignore_eos: true, ...o.extra }, { headers: o.headers });
}

// busy runs a streamed answer while f does its work.
async function busy(key, f) {
  const stream = await client(key).chat.completions.create({ model: 'sim', messages: [{ role: 'user', content: 'x' }], max_tokens: 2000, stream: true, ignore_eos: true });
  await stream[Symbol.asyncIterator]().next();
  await f();
  stream.controller.abort();
}

// refused: call must end so, after that many answers; retry is what Retry-After must be in, told whether not to retry.
async function refused(name, status, code, call, { attempts = 1, retry, told = false } = {}) {
  seen.length = 0;
  let err;
  try { await call(); } catch (e) { err = e; }
  assert(err, name + ': no error');
  if (err.status === undefined) err = err.cause; // what LangChain.js makes of a prompt that is too long
  const answer = seen.at(-1).headers;
  assert.equal(seen.at(-1).status, status, name);
  assert.equal(err.status, status, name);
  assert.equal(err.code, code, name);
  assert(answer.get('x-penstock-reason'), name);
  const after = Number(answer.get('retry-after') ?? 0);
  assert(retry ? after >= retry[0] && after <= retry[1] : after === 0, `${name}: retry-after ${after}`);
  assert.equal(answer.get('x-should-retry') === 'false', told, name);
  assert.equal(seen.length, attempts, `${name}: answers ${seen.map((a) => a.status)}`);
  console.log(`${name}: ${err.constructor.name} ${status} ${code}, reason ${answer.get('x-penstock-reason')}, retry-after ${after}, ${seen.length} answers`);
}

// recovers: call must succeed at its second try, after the time it was told.
async function recovers(name, call, first) {
  seen.length = 0;
  const begin = performance.now();
  await call();
  const took = (performance.now() - begin) / 1000;
  assert.deepEqual(seen.map((a) => a.status), [first, 200], name);
  const after = Number(seen[0].headers.get('retry-after'));
  assert(took >= after - 0.01 && took < after + 2, `${name}: told ${after} s, took ${took}`);
  console.log(`${name}: ${first}, told ${after} s, came back after ${took.toFixed(1)} s`);
}

const soon = [1, 60];
await ask('plain');
await ask('rate');
assert(seen.at(-1).headers.get('x-ratelimit-remaining-requests') !== null);
await refused('own limit', 429, 'rate_limit_exceeded', () => ask('rate', { retries: 0 }), { retry: soon });
await ask('paced');
await recovers('own limit, retried', () => ask('paced'), 429);
await ask('budget');
await refused('budget', 429, 'insufficient_quota', () => ask('budget'), { told: true });
await busy('narrow', () => refused('lane full', 429, 'server_is_overloaded', () => ask('narrow', { retries: 0 }), { retry: soon }));
await refused('no engine', 503, 'no_engine', () => ask('plain', { retries: 0, headers: { 'x-where': 'nowhere' } }), { retry: soon });
await busy('one', async () => {
  await refused('deadline', 504, 'queue_deadline_exceeded', () => ask('one', { retries: 0 }), { retry: soon });
  await refused('deadline it named', 504, 'queue_deadline_exceeded', () => ask('one', { headers: { 'x-penstock-start-timeout-ms': '300' } }), 
    { retry: soon, told: true, attempts: kind === 'langchain' ? 3 : 1 }); // LangChain.js does not look at x-should-retry
});
await refused('not JSON the API has', 400, 'invalid_request', () => ask('plain', { extra: { n: 'many' } }));
await refused('cannot ever fit', 400, 400, () => ask('plain', { text: 'x'.repeat(400_000) })); // in the engine's own words
await refused('no key', 401, 'invalid_api_key', () => ask('unknown'));
await refused('forbidden', 403, 'forbidden', () => ask('barred'));
await refused('model', 404, 'model_not_found', () => ask('plain', { model: 'nope' }));
await refused('body too big', 413, 'body_too_large', () => ask('plain', { text: 'x'.repeat(40_000_000) }));

// An engine that is lost after the first token: the status is out, the stream says it.
const stream = kind === 'langchain' ? await chat('plain', { tokens: 2000 }).stream('x')
  : await client('plain').chat.completions.create({ model: 'sim', messages: [{ role: 'user', content: 'x' }], max_tokens: 2000, stream: true, ignore_eos: true });
let lost;
let n = 0;
try {
  for await (const _ of stream) if (++n === 3) process.kill(Number(engine), 'SIGKILL');
} catch (e) { lost = e; }
assert(lost && n >= 3, `a stream that was cut ended without an error, after ${n} events`);
assert.equal(lost.code, 'upstream_lost');
console.log(`engine lost: ${lost.constructor.name} ${lost.code}`);
console.log(kind, 'ok');
