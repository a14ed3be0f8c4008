package vllmtest

import (
	"bytes"
	"embed"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
)

// Dialect is a version or front end whose metrics page looks different.
type Dialect uint8

// The dialects.
const (
	V032          Dialect = iota // vLLM 0.32.0, one API server
	V014                         // vLLM 0.14.1: no waiting_by_reason, admission_rejections, kv_cache_size_tokens; also TPOT
	TwoServers                   // --api-server-count 2: no _created, no process metrics
	DataParallel                 // --data-parallel-size 2: series of engine 0 and 1
	OldName                      // before 0.9.2: gpu_cache_usage_perc
	NoEngineLabel                // before 0.8.3: model_name only
	PerPID                       // several API servers before 0.12: KV usage once per pid, true in one series only
	OpenMetrics                  // the Rust front end: another content type, # EOF, integers, fewer families
)

const (
	typeFull        = "text/plain; version=1.0.0; charset=utf-8"
	typeFiltered    = "text/plain; version=0.0.4; charset=utf-8"
	typeOpenMetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8"
)

//go:embed testdata/metrics-*.txt
var captured embed.FS

// Page is a whole page under load as the dialect writes it, and its content type:
// captured for the first four, the rest is the captured page of 0.32 (running 14,
// waiting 2, KV usage 1) rewritten.
func Page(d Dialect) (body []byte, contentType string) {
	file := map[Dialect]string{V014: "v0.14.1-hidden-shown", TwoServers: "2-api-servers", DataParallel: "dp2"}[d]
	if file == "" {
		return d.rewrite(read("running-and-waiting")), d.contentType()
	}
	return read(file), d.contentType()
}

func read(name string) []byte {
	page, err := captured.ReadFile("testdata/metrics-" + name + ".txt")
	if err != nil {
		panic(err) // the file is embedded: a mistyped name
	}
	return page
}

// SetDialect changes what the metrics page looks like from now on.
func (e *Engine) SetDialect(d Dialect) { e.dialect.Store(uint64(d)) }

func (d Dialect) contentType() string {
	if d == OpenMetrics {
		return typeOpenMetrics
	}
	return typeFull
}

var (
	dropV014 = regexp.MustCompile(`(?m)^(# \w+ )?vllm:(num_requests_waiting_by_reason|admission_rejections|prompt_tokens_by_source)\w*[ {].*\n`)
	sizeV014 = regexp.MustCompile(`kv_cache_size_tokens="\d+",`)
	created  = regexp.MustCompile(`(?m)^(# \w+ )?[\w:]+_created[ {].*\n`)
	usage    = regexp.MustCompile(`(?m)^vllm:kv_cache_usage_perc\{.*\} (\S+)\n`)
	rank0    = regexp.MustCompile(`(?m)^(vllm:.*)engine="0"(.*\} )\S+\n`)
	counters = regexp.MustCompile(`(?m)^(# (?:HELP|TYPE) \S+)_total( counter| [A-Z].*)$`)
	whole    = regexp.MustCompile(`(?m)\.0$`)
	notRust  = regexp.MustCompile(`(?m)^(# \w+ )?(vllm:(iteration_tokens|cache_config_info)|python_|process_|http_)\w*[ {].*\n`)
)

// rewrite turns a page of 0.32 into the dialect's.
func (d Dialect) rewrite(page []byte) []byte {
	switch d {
	case V014:
		return sizeV014.ReplaceAll(dropV014.ReplaceAll(page, nil), nil)
	case TwoServers:
		return created.ReplaceAll(page, nil)
	case DataParallel: // the second rank is idle
		return rank0.ReplaceAllFunc(page, func(line []byte) []byte {
			other := rank0.ReplaceAll(line, []byte("${1}engine=\"1\"${2}0.0\n"))
			if bytes.Contains(line, []byte("_info{")) || bytes.Contains(line, []byte(`="awake"`)) {
				other = bytes.Replace(line, []byte(`engine="0"`), []byte(`engine="1"`), 1)
			}
			return append(bytes.Clone(line), other...)
		})
	case OldName:
		return bytes.ReplaceAll(page, []byte("vllm:kv_cache_usage_perc"), []byte("vllm:gpu_cache_usage_perc"))
	case NoEngineLabel:
		return bytes.ReplaceAll(page, []byte(`engine="0",`), nil)
	case PerPID:
		return usage.ReplaceAllFunc(page, func(line []byte) []byte {
			labels, value, _ := strings.Cut(string(line), "} ")
			return []byte(labels + `,pid="41"} 0.0` + "\n" + labels + `,pid="42"} ` + value + labels + `,pid="43"} 0.0` + "\n")
		})
	case OpenMetrics:
		page = notRust.ReplaceAll(created.ReplaceAll(page, nil), nil)
		page = whole.ReplaceAll(counters.ReplaceAll(page, []byte("$1$2")), nil)
		return append(page, "# EOF\n"...)
	default:
		return page
	}
}

// metrics serves the page with everything that is wrong with it.
func (e *Engine) metrics(w http.ResponseWriter, r *http.Request, sound http.Handler) {
	const ofThePage = ^(MetricsError - 1)
	if !e.has(ofThePage) && e.dialect.Load() == uint64(V032) {
		sound.ServeHTTP(w, r)
		return
	}
	filtered := r.URL.Path != "/metrics" && len(r.URL.Query()["name[]"]) > 0
	dialect := Dialect(e.dialect.Load())
	switch {
	case e.has(MetricsError):
		http.Error(w, "Internal Server Error", http.StatusInternalServerError)
		return
	case e.has(MetricsEmpty), filtered && (e.has(FilterEmpty) || dialect == TwoServers):
		w.Header().Set("Content-Type", typeFiltered)
		return
	case e.has(MetricsGarbage):
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<html><body>{\"not\": [\"an\", exposition\x00\xff</body>\nvllm:kv_cache_usage_perc{engine=\"0\" 0.5\n} }\n"))
		return
	}
	full := r.Clone(r.Context())
	full.URL = &url.URL{Path: "/metrics"}
	rec := httptest.NewRecorder()
	sound.ServeHTTP(rec, full)
	page := e.spoil(dialect.rewrite(rec.Body.Bytes()))
	kind := dialect.contentType()
	if filtered && !e.has(FilterIgnored) && dialect != OpenMetrics {
		page, kind = filter(page, r.URL.Query()["name[]"]), typeFiltered
	}
	w.Header().Set("Content-Type", kind)
	switch {
	case e.has(MetricsTruncated):
		page = bytes.TrimRight(page[:len(page)*2/3], "\n")
	case e.has(MetricsCut):
		_, _ = w.Write(page[:len(page)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler) // closes the connection without an end
	}
	_, _ = w.Write(page)
}

var load = regexp.MustCompile(`(?m)^(# \w+ )?vllm:num_requests_(running|waiting)[ {].*\n`)

var kvValue = regexp.MustCompile(`(?m)^(vllm:(?:kv|gpu)_cache_usage_perc\{.*\} )\S+\n`)

// spoil applies the faults of single values.
func (e *Engine) spoil(page []byte) []byte {
	if e.has(LoadMissing) {
		page = load.ReplaceAll(page, nil)
	}
	for f, with := range map[Fault]string{KVMissing: "", KVNaN: "${1}NaN\n", KVInf: "${1}+Inf\n", KVNegative: "${1}-0.25\n", KVOver: "${1}1.75\n"} {
		if e.has(f) {
			page = kvValue.ReplaceAll(page, []byte(with))
		}
	}
	return page
}

// filter keeps the samples of these names and the headers they come under.
func filter(page []byte, names []string) []byte {
	wanted := map[string]bool{}
	for _, n := range names {
		wanted[n] = true
	}
	var out, header []byte
	for line := range bytes.Lines(page) {
		switch {
		case bytes.HasPrefix(line, []byte("# HELP")):
			header = append(header[:0], line...)
		case line[0] == '#':
			header = append(header, line...)
		case wanted[string(line[:max(0, bytes.IndexAny(line, "{ "))])]:
			out = append(append(out, header...), line...)
			header = header[:0]
		}
	}
	return out
}
