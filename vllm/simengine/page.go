package simengine

import (
	"fmt"
	"net/http"
	"strconv"
)

// metricsPage is the full page of /metrics, which ignores name[].
func (s *Server) metricsPage(w http.ResponseWriter, _ *http.Request) {
	body := s.Page()
	h := w.Header()
	h.Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the scraper may have gone: nobody is left to tell
}

// metricsFiltered is /metrics/ with its slash: another handler in vLLM, which
// honours name[].
func (s *Server) metricsFiltered(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush() // chunked, as vLLM's
	_, _ = w.Write(s.Page(r.URL.Query()["name[]"]...))
}

// Page is the metrics page now: the samples of these names, or all where none is
// named. It has the families that load control reads, not all of vLLM's.
func (s *Server) Page(names ...string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := newPage(s.cfg.Model, s.started.UnixMicro(), names)
	s.gauges(p)
	s.counters(p)
	m := &s.metrics
	p.histogram("request_prompt_tokens", "Number of prefill tokens processed.", &m.prompt)
	p.histogram("request_generation_tokens", "Number of generation tokens processed.", &m.output)
	p.histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step.", &m.iteration)
	p.histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", &m.ttft)
	p.histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &m.itl)
	p.histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &m.e2e)
	p.gauge("cache_config_info", "Information of the LLMEngine CacheConfig", sample{s.cacheLabels(), 1})
	return p.buf
}

func (s *Server) gauges(p *page) {
	st := s.engine.Stats()
	awake := [3]float64{}
	awake[s.asleep] = 1
	p.gauge("num_requests_running", "Number of requests in model execution batches.", p.plain(float64(st.Running)))
	p.gauge("num_requests_waiting", "Number of requests waiting to be processed.", p.plain(float64(st.Waiting)))
	p.gauge("num_requests_waiting_by_reason", "Number of waiting requests by reason; the sum is vllm:num_requests_waiting.",
		sample{p.after("reason", "capacity"), float64(st.Waiting)},
		sample{p.after("reason", "deferred"), 0})
	p.gauge("engine_sleep_state", "Engine sleep state; awake = 1 means engine is awake.",
		sample{p.after("sleep_state", "awake"), awake[0]},
		sample{p.after("sleep_state", "weights_offloaded"), awake[1]},
		sample{p.after("sleep_state", "discard_all"), awake[2]})
	p.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", p.plain(st.KV))
}

func (s *Server) counters(p *page) {
	st, m := s.engine.Stats(), &s.metrics
	p.counter("num_preemptions", "Cumulative number of preemption from the engine.", p.plain(float64(st.Preemptions)))
	p.counter("prompt_tokens", "Number of prefill tokens processed.", p.plain(float64(st.PromptTokens)))
	p.counter("prompt_tokens_by_source", "Number of prompt tokens by source.",
		sample{p.after("source", "local_compute"), float64(st.PromptTokens)},
		sample{p.after("source", "local_cache_hit"), 0},
		sample{p.after("source", "external_kv_transfer"), 0})
	p.counter("generation_tokens", "Number of generation tokens processed.", p.plain(float64(st.GenerationTokens)))
	p.counter("request_success", "Count of successfully processed requests.",
		sample{p.before("finished_reason", "stop"), float64(m.stopped)},
		sample{p.before("finished_reason", "length"), float64(m.lengths)},
		sample{p.before("finished_reason", "abort"), 0}, // vLLM counts no aborts
		sample{p.before("finished_reason", "error"), 0},
		sample{p.before("finished_reason", "repetition"), 0})
	p.counter("admission_rejections", "Number of admission attempts rejected by a queue limit, by reason.",
		sample{"model_name=" + p.model + `,reason="max_num_queued_reqs"`, float64(st.RejectedReqs + m.rejectedEarly)},
		sample{"model_name=" + p.model + `,reason="max_num_queued_tokens"`, float64(st.RejectedTokens)})
}

// cacheLabels are those of a CPU build of vLLM 0.32; kv_cache_size_tokens includes
// the null block.
func (s *Server) cacheLabels() string {
	e := s.cfg.Engine
	size := e.Blocks * e.BlockSize
	return fmt.Sprintf(`_block_size_resolved="True",block_size="%[1]d",cache_dtype="auto",cache_hit_alignment_tokens="None",effective_attention_block_size="%[1]d",`+
		`enable_mamba_shared_prefix_checkpoint="False",enable_prefix_caching="False",engine="0",gpu_memory_utilization="0.92",hash_block_size="None",is_attention_free="False",`+
		`kv_cache_dtype_skip_layers="[]",kv_cache_layout="None",kv_cache_max_concurrency="%[4]v",kv_cache_memory_bytes="1073741824",kv_cache_size_tokens="%[3]d",`+
		`kv_offloading_backend="native",kv_offloading_size="None",kv_sharing_fast_prefill="False",mamba_block_size="None",mamba_cache_dtype="auto",mamba_cache_mode="none",`+
		`mamba_page_size_padded="None",mamba_ssm_cache_dtype="float32",num_cpu_blocks="None",num_gpu_blocks="%[2]d",num_gpu_blocks_override="%[2]d",`+
		`prefix_cache_retention_interval="0",prefix_caching_hash_algo="sha256",prefix_match_unit="None",replayssm_buffer_len="16",skip_page_size_padded="None",`+
		`sliding_window="None",swa_bounded_replay="True",use_kda_recoverssm="False",use_replayssm="False",user_specified_block_size="True"`,
		e.BlockSize, e.Blocks, size, float64(size)/float64(e.MaxModelLen))
}

// page writes an exposition as Python's client does: labels in alphabetical order,
// a _created family after each counter and histogram.
type page struct {
	buf     []byte
	header  []byte          // of the family being written, until its first sample
	keep    map[string]bool // sample names wanted; nil = all
	model   string          // quoted
	created float64         // Unix time of the process
}

type sample struct {
	labels string
	value  float64
}

func newPage(model string, createdMicros int64, names []string) *page {
	p := &page{model: quote(model), created: float64(createdMicros) / 1e6}
	if len(names) > 0 {
		p.keep = make(map[string]bool, len(names))
		for _, n := range names {
			p.keep[n] = true
		}
	}
	return p
}

func (p *page) plain(v float64) sample { return sample{`engine="0",model_name=` + p.model, v} }

func (p *page) after(label, value string) string {
	return `engine="0",model_name=` + p.model + `,` + label + `="` + value + `"`
}

func (p *page) before(label, value string) string {
	return `engine="0",` + label + `="` + value + `",model_name=` + p.model
}

func (p *page) gauge(name, help string, samples ...sample) {
	p.family(name, help, "gauge")
	for _, s := range samples {
		p.sample(name, "", s)
	}
}

func (p *page) counter(name, help string, samples ...sample) {
	p.family(name+"_total", help, "counter")
	for _, s := range samples {
		p.sample(name+"_total", "", s)
	}
	p.family(name+"_created", help, "gauge")
	for _, s := range samples {
		p.sample(name+"_created", "", sample{s.labels, p.created})
	}
}

func (p *page) histogram(name, help string, h *histogram) {
	p.family(name, help, "histogram")
	total := uint64(0)
	for i, n := range h.counts {
		total += n
		le := "+Inf"
		if i < len(h.bounds) {
			le = string(appendNumber(nil, h.bounds[i]))
		}
		p.sample(name, "_bucket", sample{p.before("le", le), float64(total)})
	}
	p.sample(name, "_count", p.plain(float64(total)))
	p.sample(name, "_sum", p.plain(h.sum))
	p.family(name+"_created", help, "gauge")
	p.sample(name+"_created", "", p.plain(p.created))
}

// family keeps a header for the first sample that is wanted.
func (p *page) family(name, help, kind string) {
	p.header = fmt.Appendf(p.header[:0], "# HELP vllm:%[1]s %[2]s\n# TYPE vllm:%[1]s %[3]s\n", name, help, kind)
}

func (p *page) sample(family, suffix string, s sample) {
	if p.keep != nil && !p.keep["vllm:"+family+suffix] {
		return
	}
	p.buf = append(p.buf, p.header...)
	p.header = p.header[:0]
	p.buf = append(p.buf, "vllm:"...)
	p.buf = append(p.buf, family...)
	p.buf = append(p.buf, suffix...)
	p.buf = append(p.buf, '{')
	p.buf = append(p.buf, s.labels...)
	p.buf = append(p.buf, "} "...)
	p.buf = append(appendNumber(p.buf, s.value), '\n')
}
