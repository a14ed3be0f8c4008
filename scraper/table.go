package scraper

// The families we read. Required are the first three; without one of the others
// the scheduler only keeps wider margins.
const (
	kvUsage = iota
	running
	waiting
	preemptions
	promptTokens
	generatedTokens
	steps
	stepSum
	stepCount
	awake
	kvTokens
	kvBlocks
	families
)

// fold says how the engines (data-parallel ranks) of one server become one value.
type fold uint8

const (
	sum fold = iota
	most
	least
)

// family is one signal. Series of one engine that differ in other labels (pid,
// model_name) are readings of one thing, some of them never updated: the largest
// counts. Then engines are folded.
type family struct {
	names    []string // in order of preference: the first one found counts, they are never added up
	label    string   // if set, only series with label=value
	value    string
	fold     fold
	max      float64 // a larger value is out of range
	required bool
}

const (
	maxRequests = 1e9  // far above any engine; keeps the int conversion exact
	maxTokens   = 1e15 // same, for KV tokens
	maxCount    = 1e18 // same, for counters; their sum over engines stays finite
)

// table: every name the signals have had in vLLM (V0 to 0.32). kvTokens and
// kvBlocks both come from the labels of cache_config_info, see labels.tokens.
var table = [families]family{
	kvUsage:         {names: []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}, fold: most, max: 1, required: true},
	running:         {names: []string{"vllm:num_requests_running"}, max: maxRequests, required: true},
	waiting:         {names: []string{"vllm:num_requests_waiting"}, max: maxRequests, required: true},
	preemptions:     {names: []string{"vllm:num_preemptions_total"}, max: maxCount},
	promptTokens:    {names: []string{"vllm:prompt_tokens_total"}, max: maxCount},
	generatedTokens: {names: []string{"vllm:generation_tokens_total"}, max: maxCount},
	steps:           {names: []string{"vllm:iteration_tokens_total_count"}, max: maxCount},
	stepSum:         {names: []string{"vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"}, max: maxCount},
	stepCount:       {names: []string{"vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"}, max: maxCount},
	awake:           {names: []string{"vllm:engine_sleep_state"}, label: "sleep_state", value: "awake", fold: least, max: maxCount},
	kvTokens:        {names: []string{"vllm:cache_config_info"}, max: maxCount},
	kvBlocks:        {names: []string{"vllm:cache_config_info"}, fold: most},
}

// wanted is a sample name and the family it belongs to. A slot is a name's place
// in a reading, in the table's order.
type wanted struct {
	name         string
	family, slot int
}

// slots is how many names the table holds.
const slots = 15

// prefix starts every wanted name; byLetter sorts them by the letter behind it.
const prefix = "vllm:"

var byLetter, byName = index()

func index() (letters [256][]wanted, names map[string]wanted) {
	names = make(map[string]wanted, slots)
	slot := 0
	for f := range table {
		for _, name := range table[f].names {
			if f != kvBlocks { // kvTokens has the same name and fills both
				w := wanted{name: name, family: f, slot: slot}
				names[name] = w
				letters[name[len(prefix)]] = append(letters[name[len(prefix)]], w)
			}
			slot++
		}
	}
	return letters, names
}
