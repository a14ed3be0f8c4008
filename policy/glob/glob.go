// Package glob matches the patterns of a policy: "*" is any run of bytes, and all else is
// itself.
package glob

// Match reports whether a pattern fits the whole of s: "*" is any run of bytes, "" is
// anything. It takes at most len(pattern) x len(s) steps.
func Match(pattern, s string) bool {
	if pattern == "" || pattern == "*" {
		return true
	}
	i, star, from := 0, -1, 0
	for j := 0; j < len(s); {
		switch {
		case i < len(pattern) && pattern[i] == '*':
			star, from = i, j
			i++
		case i < len(pattern) && pattern[i] == s[j]:
			i++
			j++
		case star >= 0: // the last star takes one byte more
			from++
			i, j = star+1, from
		default:
			return false
		}
	}
	for i < len(pattern) && pattern[i] == '*' {
		i++
	}
	return i == len(pattern)
}

// Any reports whether one of the patterns fits s; no patterns fit nothing.
func Any(patterns []string, s string) bool {
	for _, p := range patterns {
		if Match(p, s) {
			return true
		}
	}
	return false
}
