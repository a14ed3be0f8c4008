package policy

import _ "embed"

// Example is a policy that uses every part, with comments: the four classes vip,
// normal, trial and default.
//
//go:embed policy.example.yaml
var Example string
