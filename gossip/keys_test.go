package gossip

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"
)

func TestKeyFile(t *testing.T) {
	key := func(n int) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, n)) }
	many := ""
	for i := range 9 {
		many += base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(i)}, 16)) + "\n"
	}
	for _, tc := range []struct {
		name, page, want string // want is in the error; "" = two keys
	}{
		{"two keys", "# rotated on Monday\n\n" + key(32) + "\r\n  " + key(16) + "\n", ""},
		{"no final newline", key(24) + "\n" + key(32), ""},
		{"empty", "", ": no key in it; make one with: penstock keys gossip FILE"},
		{"comments", "# none\n", ": no key in it"},
		{"not base64", key(32) + "\nsecret word\n", ", line 2: not base64; make one"},
		{"wrong size", "\n" + key(31), ", line 2: a key of 31 bytes, not 16, 24 or 32; make one"},
		{"twice", key(32) + "\n" + key(32), ", line 2: a key that stands there already; remove"},
		{"many", many, ", line 9: more than 8 keys"},
		{"long", strings.Repeat("\n", maxKeyFile+1), " is longer than 65536 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := keyFile(t)
			if err := os.WriteFile(path, []byte(tc.page), 0o600); err != nil {
				t.Fatal(err)
			}
			keys, err := ReadKeys(path)
			switch {
			case tc.want == "" && (err != nil || len(keys) != 2):
				t.Errorf("%d keys, %v; want two", len(keys), err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), path+tc.want)):
				t.Errorf("error %v, want %s%s…", err, path, tc.want)
			case err != nil && strings.Contains(err.Error(), "secret"):
				t.Errorf("the error holds the line: %v", err)
			}
		})
	}
	if _, err := ReadKeys(t.TempDir() + "/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestInstall(t *testing.T) {
	ring := &memberlist.Keyring{}
	key := map[rune][]byte{}
	for _, r := range "abcd" {
		key[r] = bytes.Repeat([]byte{byte(r)}, 16)
	}
	for _, names := range []string{"a", "ab", "ba", "b", "cdb", "abd", "dab", "c"} {
		var keys [][]byte
		for _, r := range names {
			keys = append(keys, key[r])
		}
		if err := install(ring, keys); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, k := range ring.GetKeys() {
			got += string(k[0])
		}
		if got[0] != names[0] || len(got) != len(names) || strings.Trim(got, names) != "" {
			t.Errorf("installed %s, the ring holds %s", names, got)
		}
	}
}

func FuzzKeys(f *testing.F) {
	f.Add([]byte(makeKey() + "\n#\n" + makeKey()))
	f.Fuzz(func(t *testing.T, page []byte) {
		keys, err := parseKeys(page)
		if (err == nil) != (len(keys) > 0) || len(keys) > maxKeys {
			t.Fatalf("%d keys and error %v", len(keys), err)
		}
		if err == nil && install(&memberlist.Keyring{}, keys) != nil {
			t.Fatal("keys that cannot be installed")
		}
	})
}

func keyed(file string) func(string, ...string) Config {
	return func(name string, join ...string) Config {
		c := quick(name, join...)
		c.KeyFile = file
		return c
	}
}

func TestWrongKeyIsolates(t *testing.T) {
	t.Parallel()
	secret := makeKey()
	all := fleet(t, 2, keyed(keyFile(t, secret)))
	for name, cfg := range map[string]Config{
		"another key": keyed(keyFile(t, makeKey()))("stranger", all[0].addr),
		"no key":      quick("plain", all[0].addr),
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t, cfg)
			eventually(t, "it is isolated", func() bool { return n.metric(t, "isolated", "") == 1 })
			want := map[string]string{"another key": "decrypt", "no key": "plaintext"}[name]
			eventually(t, "the fleet says why", func() bool { return all[0].metric(t, "problems_total", want) > 0 })
			n.stop()
		})
	}
	for _, n := range all {
		if got := n.Members(); len(got) > 2 {
			t.Errorf("%s took a stranger in: %v", n.cfg.Name, got)
		}
	}
	if strings.Contains(all[0].out.String(), secret) {
		t.Error("a key is in the log")
	}
}

func TestRotationUnderTraffic(t *testing.T) {
	t.Parallel()
	before, after := makeKey(), makeKey()
	file := keyFile(t, before)
	all := fleet(t, 3, func(name string, join ...string) Config {
		c := keyed(file)(name, join...)
		c.SyncEvery = 2 * time.Second // how a node learns that others thought it gone, where it did not miss them
		return c
	})
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				close(stop)
				return
			case <-time.After(2 * time.Millisecond):
				_ = all[0].Broadcast([]byte("traffic"))
				_ = all[1].Send([]byte("traffic"))
			}
		}
	}()
	for _, keys := range [][]string{{before, after}, {after, before}, {after}, {after, makeKey(), before}, {after, before}} {
		writeKeys(t, file, keys...)
		for _, n := range all {
			if err := n.Reload(); err != nil {
				t.Fatal(err)
			}
			<-time.After(20 * time.Millisecond) // the ring is mixed meanwhile
		}
	}
	stop <- struct{}{}
	<-stop
	for _, n := range all {
		if got := n.metric(t, "problems_total", "decrypt"); got > 5 {
			t.Errorf("%s could not decrypt %v packets", n.cfg.Name, got)
		}
	}

	t.Run("a bad file keeps the keys", func(t *testing.T) {
		held := all[0].ring.GetKeys()
		writeKeys(t, file, "nonsense")
		if err := all[0].Reload(); err == nil || !strings.Contains(err.Error(), file+", line 1") {
			t.Errorf("Reload: %v", err)
		}
		if diff := cmp.Diff(held, all[0].ring.GetKeys()); diff != "" {
			t.Error("the keys changed")
		}
	})
	t.Run("a node with another key goes and comes back", func(t *testing.T) {
		writeKeys(t, file, makeKey())
		if err := all[2].Reload(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is gone", func() bool { return converged(all[:2], 2) })
		writeKeys(t, file, after)
		if err := all[2].Reload(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is back", func() bool { return converged(all, 3) })
	})
}

func TestReloadWithoutKeyFile(t *testing.T) {
	g, err := New(quick("plain"), &words{}, func([]byte) {}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Reload(); err != nil {
		t.Error(err)
	}
	cfg := quick("keyed")
	cfg.KeyFile = "/does/not/exist"
	if _, err := New(cfg, &words{}, func([]byte) {}, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); err == nil || !strings.Contains(err.Error(), "penstock keys gossip") {
		t.Errorf("New with a missing key file: %v", err)
	}
}
