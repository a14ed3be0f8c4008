// Command overload sends one open-loop workload with the lengths of the Azure
// conversation trace at a server and prints one row of figures. With --profile it
// replays the same arrivals in virtual time instead; with --tenants four tenants send
// at once, one of them ten times as much as each other.
//
//	go run ./e2e/overload --url http://127.0.0.1:8000 --rate 16 --name direct
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"penstock/load"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "overload:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	url, model, trace string
	rate              float64
	warm, span, tail  time.Duration
	divide            int
	longer            int
	bytesPerToken     float64
	patience, giveUp  time.Duration
	retries           int
	obey              bool
	seed              uint64
	name, dump        string
	header            bool
	out               string
	profile, policy   string
	tenants           bool
	times             float64
}

func run() error {
	var o options
	flag.StringVar(&o.url, "url", "http://127.0.0.1:8000", "server")
	flag.StringVar(&o.model, "model", "tiny", "model name")
	flag.StringVar(&o.trace, "trace", "sim/traces/azure_llm_2023_conv.csv", "Azure 2023 trace")
	flag.Float64Var(&o.rate, "rate", 12, "requests per second; with --tenants, of each but the abuser")
	flag.DurationVar(&o.warm, "warm", 0, "arrivals before those that are counted")
	flag.DurationVar(&o.span, "span", 40*time.Second, "arrivals that are counted")
	flag.DurationVar(&o.tail, "tail", 0, "arrivals after them, so that the last live under the same load")
	flag.IntVar(&o.divide, "divide", 4, "trace lengths are divided by this")
	flag.IntVar(&o.longer, "longer", 4, "prompts are then this much longer: so many bytes of English are a token, and one is for the test model")
	flag.Float64Var(&o.bytesPerToken, "bytes-per-token", 1, "the model's: 1 for the test model, 4 for a simulated engine")
	flag.DurationVar(&o.patience, "patience", 10*time.Second, "close without a first token by then")
	flag.IntVar(&o.retries, "retries", 0, "attempts after a refusal")
	flag.DurationVar(&o.giveUp, "give-up", 0, "no attempt begins later than this after the first; --tail should be as long; 0 = no limit")
	flag.BoolVar(&o.obey, "obey-retry-after", false, "come back exactly at Retry-After")
	flag.Uint64Var(&o.seed, "seed", 1, "workload seed")
	flag.StringVar(&o.name, "name", "run", "name of the row")
	flag.BoolVar(&o.header, "header", false, "print the table's header first")
	flag.StringVar(&o.out, "out", "", "append the row to this file, as a line of JSON")
	flag.StringVar(&o.dump, "dump", "", "write every outcome to this file, as JSON")
	flag.StringVar(&o.profile, "profile", "", "replay in virtual time on this profile of penstock sim fit")
	flag.StringVar(&o.policy, "policy", "none", "with --profile: a policy of penstock sim replay without settings")
	flag.BoolVar(&o.tenants, "tenants", false, "four tenants, with the API keys that --print-keys shows")
	flag.Float64Var(&o.times, "abuse", 10, "with --tenants: how many times the others' rate the abuser sends")
	medians := flag.String("medians", "", "print the medians of the rows in a file of --out, and end")
	keys := flag.Bool("print-keys", false, "print the tenants' file for penstock's --api-keys, and end")
	flag.Parse()

	if *keys {
		printKeys()
		return nil
	}
	if *medians != "" {
		return summarize(*medians)
	}
	shapes, err := o.shapes()
	if err != nil {
		return err
	}
	if o.tenants {
		return o.runTenants(shapes)
	}
	arrivals := o.arrivals(shapes, o.rate, o.seed)
	if o.profile != "" {
		return o.predict(arrivals)
	}
	outcomes, err := load.Run(context.Background(), o.config(arrivals))
	if err != nil {
		return err
	}
	if o.dump != "" {
		text, err := json.Marshal(outcomes)
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.dump, text, 0o644); err != nil {
			return err
		}
	}
	s := load.Summarize(outcomes)
	if o.warm+o.tail > 0 {
		s = load.Between(outcomes, o.warm, o.warm+o.span)
	}
	return o.write(rowOf(s), note(s))
}

func (o *options) shapes() ([]load.Shape, error) {
	file, err := os.Open(o.trace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	shapes, err := load.ReadAzure(file)
	if err != nil {
		return nil, err
	}
	for i := range shapes {
		shapes[i].Prompt = shapes[i].Prompt / o.divide * o.longer
		shapes[i].Output /= o.divide
	}
	return shapes, nil
}

// arrivals of the whole run; those of one that has warm or tail are steady.
func (o *options) arrivals(shapes []load.Shape, rate float64, seed uint64) []load.Arrival {
	whole := o.warm + o.span + o.tail
	arrivals := load.Poisson(shapes, rate, int(rate*whole.Seconds()), seed)
	if o.warm+o.tail > 0 {
		arrivals = load.Steady(arrivals, whole)
	}
	return arrivals
}

func (o *options) config(arrivals []load.Arrival) load.Config {
	return load.Config{
		URL: o.url, Model: o.model, Arrivals: arrivals, BytesPerToken: o.bytesPerToken, Patience: o.patience,
		GiveUp: o.giveUp, Retries: o.retries, ObeyRetry: o.obey, Backoff: time.Second, SLO: load.DefaultSLO, Seed: o.seed,
	}
}

// note is what a row says beside its figures.
func note(s load.Summary) string {
	var parts []string
	for why, n := range s.Refused {
		parts = append(parts, fmt.Sprintf("%s %d", why, n))
	}
	slices.Sort(parts)
	if s.Told > 0 {
		parts = append(parts, fmt.Sprintf("half were told to return within %.0f s", s.Told.Seconds()))
	}
	if s.Returned > 0 {
		parts = append(parts, fmt.Sprintf("%d returned as told, of whom %.0f %% were admitted", s.Returned, 100*float64(s.ReturnStarted)/float64(s.Returned)))
	}
	return strings.Join(parts, ", ")
}
