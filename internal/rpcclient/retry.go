package rpcclient

import (
	"encoding/json"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// The service configuration as gRPC reads it, see grpc/service_config.proto of the gRPC project.
type (
	serviceConfigJSON struct {
		MethodConfig    []methodConfigJSON `json:"methodConfig"`
		RetryThrottling throttlingJSON     `json:"retryThrottling"`
	}
	methodConfigJSON struct {
		Name        []methodNameJSON `json:"name"`
		RetryPolicy retryPolicyJSON  `json:"retryPolicy"`
	}
	methodNameJSON struct {
		Service string `json:"service"`
		Method  string `json:"method"`
	}
	retryPolicyJSON struct {
		MaxAttempts          int      `json:"maxAttempts"`
		InitialBackoff       string   `json:"initialBackoff"`
		MaxBackoff           string   `json:"maxBackoff"`
		BackoffMultiplier    float64  `json:"backoffMultiplier"`
		RetryableStatusCodes []string `json:"retryableStatusCodes"`
	}
	throttlingJSON struct {
		MaxTokens  int     `json:"maxTokens"`
		TokenRatio float64 `json:"tokenRatio"`
	}
)

// serviceConfig lets unary methods be tried again on UNAVAILABLE. They are named one by one, because a wildcard would
// take the streams in; the names come from the protos that this program is linked with, the only ones it can call.
func serviceConfig() string {
	config := serviceConfigJSON{
		// Retries stop while more than half of the tokens are spent: a failed call costs one, ten successes earn one.
		RetryThrottling: throttlingJSON{MaxTokens: 10, TokenRatio: 0.1},
	}
	if names := unaryMethods(protoregistry.GlobalFiles); len(names) > 0 {
		config.MethodConfig = []methodConfigJSON{{Name: names, RetryPolicy: retryPolicyJSON{
			MaxAttempts:          3,
			InitialBackoff:       "0.05s",
			MaxBackoff:           "0.5s",
			BackoffMultiplier:    3,
			RetryableStatusCodes: []string{"UNAVAILABLE"},
		}}}
	}
	text, err := json.Marshal(config)
	if err != nil {
		// Strings and numbers only: unreachable. Without a configuration gRPC does not retry, which is safe.
		return "{}"
	}
	return string(text)
}

// unaryMethods returns the methods of Trivet's services in files that have neither a stream of requests nor of responses,
// ordered by name.
func unaryMethods(files *protoregistry.Files) []methodNameJSON {
	var names []methodNameJSON
	files.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(file.Package()), "trivet.") {
			return true
		}
		for i := range file.Services().Len() {
			names = append(names, unaryMethodsOf(file.Services().Get(i))...)
		}
		return true
	})
	slices.SortFunc(names, func(a, b methodNameJSON) int {
		return strings.Compare(a.Service+"/"+a.Method, b.Service+"/"+b.Method)
	})
	return names
}

func unaryMethodsOf(service protoreflect.ServiceDescriptor) []methodNameJSON {
	var names []methodNameJSON
	for i := range service.Methods().Len() {
		method := service.Methods().Get(i)
		if !method.IsStreamingClient() && !method.IsStreamingServer() {
			names = append(names, methodNameJSON{Service: string(service.FullName()), Method: string(method.Name())})
		}
	}
	return names
}
