package httpapi

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// checkQuery returns why grpc-gateway would not understand the query, or would ignore a part of it.
// The errors of grpc-gateway name functions of Go, and no valid values.
func (b binding) checkQuery(target *url.URL) error {
	query := target.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		field, known := b.parameters[name]
		if !known {
			return fmt.Errorf("%q has no parameter %q", target.Path, name)
		}
		values := query[name]
		if len(values) > 1 && !field.IsList() {
			return fmt.Errorf("the parameter %q has %d values, and takes one", name, len(values))
		}
		for _, value := range values {
			if err := checkValue(field, value); err != nil {
				return fmt.Errorf("%s=%q: %w", name, value, err)
			}
		}
	}
	return nil
}

func checkValue(field protoreflect.FieldDescriptor, value string) error {
	var err error
	switch field.Kind() {
	case protoreflect.BoolKind:
		if _, err = strconv.ParseBool(value); err != nil {
			return errors.New("must be true or false")
		}
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		_, err = strconv.ParseInt(value, 10, 32)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		_, err = strconv.ParseInt(value, 10, 64)
	case protoreflect.EnumKind:
		return checkEnum(field.Enum().Values(), value)
	case protoreflect.MessageKind:
		return checkMessage(field.Message().FullName(), value)
	}
	switch {
	case errors.Is(err, strconv.ErrRange):
		return errors.New("is too large a number")
	case err != nil:
		return errors.New("must be a whole number")
	default:
		return nil
	}
}

func checkEnum(values protoreflect.EnumValueDescriptors, value string) error {
	if number, err := strconv.ParseInt(value, 10, 32); err == nil && values.ByNumber(protoreflect.EnumNumber(number)) != nil ||
		values.ByName(protoreflect.Name(value)) != nil {
		return nil
	}
	var names []string
	for i := range values.Len() {
		if values.Get(i).Number() != 0 { // unspecified
			names = append(names, string(values.Get(i).Name()))
		}
	}
	return fmt.Errorf("must be one of %s", strings.Join(names, ", "))
}

func checkMessage(name protoreflect.FullName, value string) error {
	switch name {
	case "google.protobuf.Duration":
		if _, err := time.ParseDuration(value); err != nil {
			return errors.New("must be a duration, such as 1.5s")
		}
	case "google.protobuf.Timestamp":
		if _, err := time.Parse(time.RFC3339Nano, value); err != nil {
			return errors.New("must be a time of RFC 3339, such as 2026-01-02T03:04:05Z")
		}
	}
	return nil
}
