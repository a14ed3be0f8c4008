package main

import (
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/classify"
	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/cmd/penstock/show"
	"penstock/policy"
)

// mostBody is how much of a request penstock classify reads, as the gateway's default.
const mostBody = 32 << 20

func newClassify() *cobra.Command {
	var file, key, path, output string
	var headers []string
	cmd := &cobra.Command{
		Use:   "classify",
		Short: "Say which rule of a policy a request meets, and which lane it goes to",
		Long: `classify reads the JSON body of a request from standard input and says what a gateway with that policy would make
of it: the rules it looks at and what keeps each from holding, the tier and who chose it, the model behind an alias, the
lane with its limits, and the quotas it counts against. Nothing is sent. The length of the prompt is estimated at 4 bytes
per token; a gateway learns the ratio of each model.`,
		Example: `  penstock classify --policy policy.yaml < request.json
  penstock classify --policy policy.yaml --key "$KEY" --header x-penstock-tier:vip < request.json
  penstock classify --policy policy.yaml -o json < request.json | jq .lane`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := show.CheckOutput(output); err != nil {
				return err
			}
			p := policy.Default(nil, "")
			if file != "" {
				var err error
				if p, err = flags.ParsePolicy(file); err != nil {
					return err
				}
			}
			said := http.Header{}
			for _, h := range headers {
				name, value, ok := strings.Cut(h, ":")
				if !ok {
					return exit.Usagef("--header %q: want NAME:VALUE", h)
				}
				said.Add(strings.TrimSpace(name), strings.TrimSpace(value))
			}
			if key != "" {
				said.Set("Authorization", "Bearer "+key)
			}
			if _, ok := classify.Kinds[path]; !ok {
				return exit.Usagef("--path %q: want /v1/chat/completions, /v1/completions or /v1/embeddings", path)
			}
			body, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), mostBody))
			if err != nil {
				return err
			}
			c, err := classify.Request(p, said, path, body)
			if err != nil {
				return err
			}
			return c.Write(cmd.OutOrStdout(), output)
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "policy", "", "the policy's file; without it there is one tier and no rule")
	f.StringVar(&key, "key", "", "API key the request comes with, for a policy with keys")
	f.StringVar(&path, "path", "/v1/chat/completions", "path the request is sent to")
	f.StringArrayVar(&headers, "header", nil, "NAME:VALUE of a header; may be given several times")
	f.StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}
