// openai-node against penstock, unmodified. usage: node openai_client.mjs BASE_URL NODE_MODULES
import assert from 'node:assert';
import { createRequire } from 'node:module';

const require = createRequire(process.argv[3] + '/');
const OpenAI = require('openai').default;
const client = new OpenAI({ baseURL: process.argv[2] + '/v1', apiKey: 'none' });

const models = [];
for await (const model of client.models.list()) models.push(model.id);
assert.deepEqual(models, ['tiny']);

const ask = { model: 'tiny', messages: [{ role: 'user', content: 'hi' }], max_tokens: 12, temperature: 0 };
const plain = await client.chat.completions.create(ask);
assert.equal(plain.usage.completion_tokens, 12);

let text = '';
let usage;
for await (const event of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
  if (event.choices.length) text += event.choices[0].delta.content ?? '';
  else usage = event.usage;
}
assert.equal(text, plain.choices[0].message.content);
assert.equal(usage.completion_tokens, 12);

const long = await client.completions.create({ model: 'tiny', prompt: 'abc', max_tokens: 4000, stream: true, ignore_eos: true });
for await (const _ of long) break; // leaving the loop closes the connection

await assert.rejects(client.completions.create({ model: 'nope', prompt: 'x' }), (err) => err.status === 404 && err.code === 'model_not_found');
console.log('openai-node', createRequire(import.meta.url)(process.argv[3] + '/openai/package.json').version, 'ok');
