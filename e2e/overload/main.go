// Command overload sends one open-loop workload with the lengths of the Azure
// conversation trace at a server and prints one row of figures.
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

func run() error {
	url := flag.String("url", "http://127.0.0.1:8000", "server")
	model := flag.String("model", "tiny", "model name")
	trace := flag.String("trace", "sim/traces/azure_llm_2023_conv.csv", "Azure 2023 trace")
	rate := flag.Float64("rate", 12, "requests per second")
	span := flag.Duration("span", 40*time.Second, "length of the run")
	divide := flag.Int("divide", 4, "trace lengths are divided by this")
	bytesPerToken := flag.Float64("bytes-per-token", 4, "prompt bytes per trace token")
	patience := flag.Duration("patience", 10*time.Second, "close without a first token by then")
	retries := flag.Int("retries", 0, "attempts after a refusal")
	obey := flag.Bool("obey-retry-after", false, "come back exactly at Retry-After")
	seed := flag.Uint64("seed", 1, "workload seed")
	name := flag.String("name", "run", "name of the row")
	header := flag.Bool("header", false, "print the table's header first")
	asJSON := flag.Bool("json", false, "print the summary as JSON")
	dump := flag.String("dump", "", "write every outcome to this file, as JSON")
	flag.Parse()

	file, err := os.Open(*trace)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	shapes, err := load.ReadAzure(file)
	if err != nil {
		return err
	}
	for i := range shapes {
		shapes[i].Prompt /= *divide
		shapes[i].Output /= *divide
	}
	outcomes, err := load.Run(context.Background(), load.Config{
		URL: *url, Model: *model, Arrivals: load.Poisson(shapes, *rate, int(*rate*span.Seconds()), *seed),
		BytesPerToken: *bytesPerToken, Patience: *patience, Retries: *retries, ObeyRetry: *obey, Backoff: time.Second,
		SLO: load.DefaultSLO, Seed: *seed,
	})
	if err != nil {
		return err
	}
	if *dump != "" {
		text, err := json.Marshal(outcomes)
		if err != nil {
			return err
		}
		if err := os.WriteFile(*dump, text, 0o644); err != nil {
			return err
		}
	}
	s := load.Summarize(outcomes)
	if *asJSON {
		return json.NewEncoder(os.Stdout).Encode(s)
	}
	if *header {
		fmt.Println("| run | req/s | goodput req/s | goodput tok/s | TTFT p50 | TTFT p99 | gap p99 | good by prompt quartile | no Retry-After | returned, admitted | refused |")
		fmt.Println("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	}
	fmt.Printf("| %s | %g | %.2f | %.0f | %d ms | %d ms | %d ms | %.2f %.2f %.2f %.2f | %d | %s | %s |\n", *name, *rate, s.Goodput, s.TokenGoodput,
		s.TTFTp50.Milliseconds(), s.TTFTp99.Milliseconds(), s.GapP99.Milliseconds(),
		s.Quartiles[0], s.Quartiles[1], s.Quartiles[2], s.Quartiles[3], s.Untold, returned(s), refused(s.Refused))
	return nil
}

func returned(s load.Summary) string {
	if s.Returned == 0 {
		return "-"
	}
	return fmt.Sprintf("%d, %.0f %%", s.Returned, 100*float64(s.ReturnStarted)/float64(s.Returned))
}

func refused(by map[string]int) string {
	var parts []string
	for why, n := range by {
		parts = append(parts, fmt.Sprintf("%s %d", why, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
