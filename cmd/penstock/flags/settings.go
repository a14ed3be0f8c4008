package flags

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/cmd/penstock/reload"
	"penstock/config"
)

// readOnce are the flags of files that are read at the start alone.
var readOnce = []string{"api-keys", "engine-api-key-file", "rocketmq-credentials-file", "rocketmq-ca-file", "redis-password-file", "redis-ca-file"}

// Settings are the flags of a process as it runs.
type Settings struct {
	flags *pflag.FlagSet
	fresh func() *cobra.Command
	files map[string]string // fingerprints of readOnce's files
}

// newSettings is nil where fresh is.
func newSettings(f *pflag.FlagSet, fresh func() *cobra.Command) *Settings {
	if fresh == nil {
		return nil
	}
	s := &Settings{f, fresh, map[string]string{}}
	for _, name := range readOnce {
		if path, _ := f.GetString(name); path != "" {
			s.files[name] = Fingerprint(path)
		}
	}
	return s
}

// Fingerprint is the same for the same content.
func Fingerprint(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(text)
	return string(sum[:])
}

// Compare reads the configuration file again, as a start with the same command line
// would, and says what would be another then. check: whether that start would succeed,
// too; where the policy is wrong, that is known.
func (s *Settings) Compare(check bool) []reload.Outcome {
	if s == nil {
		return nil
	}
	file, _ := s.flags.GetString("config")
	file = config.Find(file, os.LookupEnv)
	fresh := s.fresh().Flags()
	s.flags.VisitAll(func(f *pflag.Flag) {
		if g := fresh.Lookup(f.Name); f.Changed && g != nil { // given on the command line
			g.Changed = true
			if list, ok := f.Value.(pflag.SliceValue); ok {
				_ = g.Value.(pflag.SliceValue).Replace(list.GetSlice())
				return
			}
			_ = g.Value.Set(f.Value.String())
		}
	})
	origins, err := config.Load(fresh, file, os.LookupEnv)
	if err == nil && check {
		_, err = Read(fresh)
	}
	if err != nil {
		return []reload.Outcome{{Part: "settings", Result: reload.Refused, Detail: err.Error()}}
	}
	var all []reload.Outcome
	fresh.VisitAll(func(f *pflag.Flag) {
		if was := s.flags.Lookup(f.Name); was != nil && !config.NotASetting(f.Name) && was.Value.String() != f.Value.String() {
			all = append(all, reload.Outcome{Part: f.Name, Result: reload.NeedsRestart, Detail: fmt.Sprintf("%s (%s), was %s", Redacted(f.Value.String()), origins[f.Name], Redacted(was.Value.String()))})
		}
	})
	for _, name := range readOnce {
		if path, _ := s.flags.GetString(name); path != "" && s.files[name] != Fingerprint(path) {
			all = append(all, reload.Outcome{Part: name, Result: reload.NeedsRestart, Detail: path + " has changed"})
		}
	}
	if len(all) == 0 {
		all = append(all, reload.Outcome{Part: "settings", Result: reload.Unchanged, Detail: cmp.Or(file, "no configuration file")})
	}
	return all
}
