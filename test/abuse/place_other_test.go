//go:build !linux

package abuse

import "errors"

func takePlace(place) error { return errors.New("needs Linux") }
