package policy

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// hashPrefix marks a key stored as its hash.
const hashPrefix = "sha256:"

// Keys are the API keys of all tenants. Only hashes are kept. Immutable.
type Keys struct {
	byPrefix map[uint64][]apiKey // first 8 bytes of the hash, so that a lookup does not visit every tenant
	count    int
}

type apiKey struct {
	hash   [sha256.Size]byte
	tenant string
	id     string // the hash's first 64 bits
}

// HashKey is how a key is written in a keys file that keeps no secrets.
func HashKey(key string) string {
	hash := sha256.Sum256([]byte(key))
	return hashPrefix + hex.EncodeToString(hash[:])
}

// ParseKeys reads a YAML mapping of tenant to key, or to "sha256:<64 hex digits>".
// An error names the line. A tenant or a key that appears twice is refused, and
// so is a file without keys: it would lock everybody out.
func ParseKeys(yaml []byte) (*Keys, error) {
	file, err := parser.ParseBytes(yaml, 0)
	if err != nil {
		line, _, _ := strings.Cut(err.Error(), "\n") // what follows quotes the file, keys and all
		return nil, fmt.Errorf("api keys: %s", line)
	}
	if len(file.Docs) > 1 {
		return nil, errors.New("api keys: the file has several documents; keep one")
	}
	keys := &Keys{byPrefix: map[uint64][]apiKey{}}
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		mapping, ok := doc.Body.(ast.MapNode)
		if !ok {
			return nil, fmt.Errorf("api keys: line %d: want \"tenant: key\" lines", doc.Body.GetToken().Position.Line)
		}
		for entry := mapping.MapRange(); entry.Next(); {
			line := entry.Key().GetToken().Position.Line
			if err := keys.add(entry); err != nil {
				return nil, fmt.Errorf("api keys: line %d: %w", line, err)
			}
		}
	}
	if keys.count == 0 {
		return nil, errors.New("api keys: the file has no keys; add a line \"tenant: key\"")
	}
	return keys, nil
}

func (k *Keys) add(entry *ast.MapNodeIter) error {
	tenant, ok := scalar(entry.Key())
	if !ok || tenant == "" {
		return errors.New("the tenant must be a plain word")
	}
	if len(tenant) > maxName {
		return fmt.Errorf("the tenant's name has %d bytes, at most %d", len(tenant), maxName)
	}
	key, ok := scalar(entry.Value())
	if !ok || key == "" {
		return fmt.Errorf("the key of %q must be a text; quote it", tenant)
	}
	if !strings.HasPrefix(key, hashPrefix) {
		key = HashKey(key)
	}
	return k.put(tenant, key)
}

// put adds a key that is given as its hash.
func (k *Keys) put(tenant, hash string) error {
	raw, err := hex.DecodeString(strings.TrimPrefix(hash, hashPrefix))
	if err != nil || len(raw) != sha256.Size {
		return fmt.Errorf("the hash of %q needs %d hex digits after %q", tenant, 2*sha256.Size, hashPrefix)
	}
	stored := apiKey{hash: [sha256.Size]byte(raw), tenant: tenant, id: hex.EncodeToString(raw[:8])}
	if other, dup := k.find(stored.hash); dup {
		return fmt.Errorf("tenants %q and %q have the same key", other.tenant, tenant)
	}
	prefix := binary.BigEndian.Uint64(stored.hash[:])
	k.byPrefix[prefix] = append(k.byPrefix[prefix], stored)
	k.count++
	return nil
}

// scalar is the text of a YAML word, number or string as it is written.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

func (k *Keys) find(hash [sha256.Size]byte) (found apiKey, ok bool) {
	for _, stored := range k.byPrefix[binary.BigEndian.Uint64(hash[:])] {
		if subtle.ConstantTimeCompare(stored.hash[:], hash[:]) == 1 {
			return stored, true
		}
	}
	return apiKey{}, false
}

// bearer is the key of an Authorization header.
func (k *Keys) bearer(authorization string) (found apiKey, ok bool) {
	scheme, key, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return apiKey{}, false
	}
	return k.find(sha256.Sum256([]byte(strings.TrimSpace(key))))
}
