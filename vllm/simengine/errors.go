package simengine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// apiError is vLLM's error body.
type apiError struct {
	Status  int
	Message string
	Type    string
	Param   string // "" = null
}

var errBusy = &apiError{
	Status:  http.StatusServiceUnavailable,
	Type:    "Service Unavailable",
	Message: "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
}

var errDead = &apiError{
	Status:  http.StatusInternalServerError,
	Type:    "InternalServerError",
	Message: "EngineCore encountered an issue. See stack trace (above) for the root cause.",
}

// body is the error as a whole answer: no spaces.
func (e *apiError) body() []byte { return e.render(",", ":") }

// frame is the error as an event of a stream: with the spaces of Python's json.
func (e *apiError) frame() []byte {
	return append(append([]byte("data: "), e.render(", ", ": ")...), "\n\n"...)
}

func (e *apiError) render(comma, colon string) []byte {
	param := "null"
	if e.Param != "" {
		param = quote(e.Param)
	}
	return fmt.Appendf(nil, `{"error"%[2]s{"message"%[2]s%[3]s%[1]s"type"%[2]s%[4]s%[1]s"param"%[2]s%[5]s%[1]s"code"%[2]s%[6]d}}`,
		comma, colon, quote(e.Message), quote(e.Type), param, e.Status)
}

func quote(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string into a Builder can't fail
	return strings.TrimSuffix(b.String(), "\n")
}

// invalid is one failed check of the body in pydantic's words.
func invalid(kind, loc, message, input, ctx string) *apiError {
	if ctx != "" {
		ctx = ", 'ctx': {'error': '" + ctx + "'}"
	}
	return &apiError{
		Status: http.StatusBadRequest,
		Type:   "Bad Request",
		Param:  loc,
		Message: fmt.Sprintf("1 validation error:\n  {'type': '%s', 'loc': '%s', 'msg': '%s', 'input': '%s'%s}",
			kind, loc, message, input, ctx),
	}
}

// badRequest is a body of the right types that can't be served.
func badRequest(param, message string) *apiError {
	return &apiError{Status: http.StatusBadRequest, Type: "BadRequestError", Param: param, Message: message}
}

// errContext is a prompt over the context; vLLM counts no further than one over.
func errContext(limit int) *apiError {
	return badRequest("input_tokens", fmt.Sprintf("This model's maximum context length is %d tokens. However, your prompt contains at least %[2]d input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=%[2]d)", limit, limit+1))
}

// errLimit is a limit below one token, the client's or what a prompt as long as the
// context leaves.
func errLimit(limit int) *apiError {
	return badRequest("max_tokens", fmt.Sprintf("max_tokens must be at least 1, got %[1]d. (parameter=max_tokens, value=%[1]d)", limit))
}

func errModel(asked, served string) *apiError {
	return &apiError{
		Status:  http.StatusNotFound,
		Type:    "NotFoundError",
		Param:   "model",
		Message: fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", asked, served),
	}
}

var errMediaType = &apiError{
	Status:  http.StatusBadRequest,
	Type:    "Bad Request",
	Message: "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
}
