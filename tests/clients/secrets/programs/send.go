// Send the key to a URL and print the answer, with net/http as it is.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	request, err := http.NewRequest("GET", os.Args[1], nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("API_KEY"))
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(os.Stdout, answer.Body); err != nil || answer.StatusCode != http.StatusOK {
		fmt.Fprintln(os.Stderr, answer.Status, err)
		os.Exit(1)
	}
}
