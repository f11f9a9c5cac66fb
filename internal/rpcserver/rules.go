package rpcserver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// rules has the checks of all requests. Interceptors hold it from the start. compile adds the
// checks of the registered services before the first call.
type rules struct {
	// checks has the checks of each method, without the skipped ones.
	checks map[string]*requestChecks
	// access has the access rule of each method, and shapes the shape of its request.
	access map[string]*methodAccess
	shapes map[string]*wireShape
	// skipped are the full methods whose handlers check their messages.
	skipped map[string]bool
}

func newRules(unvalidated []string) *rules {
	r := &rules{skipped: make(map[string]bool, len(unvalidated))}
	for _, method := range unvalidated {
		r.skipped[method] = true
	}
	return r
}

// compile builds the checks of all request messages, and fails for a method without an access rule.
// Otherwise the first calls would be slow, and a rule that does not compile would fail each call
// instead of the start.
func (r *rules) compile(services []string) error {
	methods, err := methodsOf(services)
	if err != nil {
		return err
	}
	if err := r.checkSkipped(methods); err != nil {
		return err
	}
	if err := checkAccess(methods); err != nil {
		return err
	}
	messages := map[protoreflect.FullName]protoreflect.MessageDescriptor{}
	for _, method := range methods {
		collect(method.Input(), messages)
	}
	validator, err := newValidator(messages)
	if err != nil {
		return err
	}
	r.checks = map[string]*requestChecks{}
	r.access = map[string]*methodAccess{}
	r.shapes = map[string]*wireShape{}
	shapes, encoded := map[protoreflect.FullName]*messageShape{}, map[protoreflect.FullName]*wireShape{}
	for name, method := range methods {
		r.access[name] = newMethodAccess(method)
		if r.shapes[name], err = wireShapeOf(method.Input(), encoded); err != nil {
			return err
		}
		if !r.skipped[name] {
			r.checks[name] = newRequestChecks(method.Input(), validator, shapes)
		}
	}
	return nil
}

func (r *rules) checkSkipped(methods map[string]protoreflect.MethodDescriptor) error {
	for _, skipped := range slices.Sorted(maps.Keys(r.skipped)) {
		if methods[skipped] == nil {
			return fmt.Errorf("unvalidated method %q is not among the registered ones: %s",
				skipped, strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
		}
	}
	return nil
}

// methodsOf returns the methods of services by their full names, "/package.Service/Method".
func methodsOf(services []string) (map[string]protoreflect.MethodDescriptor, error) {
	found := map[string]protoreflect.MethodDescriptor{}
	for _, name := range services {
		descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			return nil, fmt.Errorf("find the rules of service %q: %w", name, err)
		}
		service, ok := descriptor.(protoreflect.ServiceDescriptor)
		if !ok {
			return nil, fmt.Errorf("find the rules of service %q: it is not a service", name)
		}
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			found["/"+name+"/"+string(method.Name())] = method
		}
	}
	return found, nil
}

// collect adds message and the messages of its fields to into.
func collect(message protoreflect.MessageDescriptor, into map[protoreflect.FullName]protoreflect.MessageDescriptor) {
	if into[message.FullName()] != nil {
		return
	}
	into[message.FullName()] = message
	for i := range message.Fields().Len() {
		if inner := message.Fields().Get(i).Message(); inner != nil {
			collect(inner, into)
		}
	}
}

// newValidator returns a validator of messages. It validates an empty message of each type, because
// protovalidate reports rules that do not compile only then. Violations of empty messages are
// ignored.
func newValidator(messages map[protoreflect.FullName]protoreflect.MessageDescriptor) (protovalidate.Validator, error) {
	validator, err := protovalidate.New(
		protovalidate.WithMessageDescriptors(slices.Collect(maps.Values(messages))...),
		protovalidate.WithDisableLazy(),
	)
	if err != nil {
		return nil, fmt.Errorf("set up request validation: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(messages)) {
		err := validator.Validate(dynamicpb.NewMessage(messages[name]))
		var broken *protovalidate.ValidationError
		if err != nil && !errors.As(err, &broken) {
			return nil, fmt.Errorf("rules of message %q: %w", name, err)
		}
	}
	return validator, nil
}
