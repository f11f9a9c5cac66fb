package rpcclient

import (
	"encoding/json"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// These types are the JSON form of grpc/service_config.proto.
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

// serviceConfig retries unary methods on UNAVAILABLE. It names each method, because a wildcard
// would include streams. The names come from the linked protos.
func serviceConfig() string {
	config := serviceConfigJSON{
		// Retries stop while more than half of the tokens are used. A failed call uses one token,
		// and ten successes return one.
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
		// Unreachable: strings and numbers always encode. Without a configuration gRPC does not
		// retry.
		return "{}"
	}
	return string(text)
}

// unaryMethods returns the unary methods of Trivet's services in files, ordered by name.
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
