// Package cost prices a request before it runs: prompt tokens from its bytes and
// output tokens from what requests of its class produced. Pure and not safe for
// concurrent use; the gateway holds a mutex around it.
package cost
