package main

import (
	"fmt"
	"io"

	"rsc.io/qr"
)

const qrMargin = 2 // modules of light around a code; readers want four, and get along with two

// writeQR draws a QR code with two rows of modules on a line. Light modules are drawn, dark ones are left out, as terminals are dark;
// readers also take the inverse.
func writeQR(w io.Writer, text string) error {
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		return err
	}
	light := func(x, y int) bool { return !code.Black(x, y) } // outside of the code nothing is black
	for y := -qrMargin; y < code.Size+qrMargin; y += 2 {
		line := ""
		for x := -qrMargin; x < code.Size+qrMargin; x++ {
			switch upper, lower := light(x, y), light(x, y+1) && y+1 < code.Size+qrMargin; {
			case upper && lower:
				line += "█"
			case upper:
				line += "▀"
			case lower:
				line += "▄"
			default:
				line += " "
			}
		}
		if _, err := fmt.Fprintln(w, "  "+line); err != nil {
			return err
		}
	}
	return nil
}
